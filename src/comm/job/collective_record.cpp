#include "comm/job/collective_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/job/fingerprint.h"

namespace fsdp {

namespace {

constexpr std::string_view kCut = "…";

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Copies the label. If it does not fit, copies "…" and the last bytes of the label. Never divides a
// UTF-8 character.
void put_end(std::string_view label, std::span<char> field) {
  std::string_view end = label;
  if (label.size() >= field.size()) {
    end.remove_prefix(label.size() - (field.size() - 1 - kCut.size()));
    while (!end.empty() && continues_a_character(end.front())) end.remove_prefix(1);
    field = field.subspan(std::copy(kCut.begin(), kCut.end(), field.data()) - field.data());
  }
  std::copy(end.begin(), end.end(), field.data());
}

}  // namespace

void mark_cut(std::span<char> field) {
  size_t at = field.size() - 1 - kCut.size();
  while (at > 0 && continues_a_character(field[at])) --at;
  std::fill(std::copy(kCut.begin(), kCut.end(), field.data() + at), field.data() + field.size(),
            '\0');
}

CollectiveRecord make_record(const Collective& collective) {
  const std::span<const CollectivePart> parts = collective.parts;
  const CollectiveTag& tag = collective.tag;
  CollectiveRecord record{};
  record.operation = collective.operation;
  record.reduce_op = collective.reduce_op;
  record.root = collective.root;
  record.part_count = static_cast<int32_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    // The hash covers all parts, but messages show only the first ones.
    if (i < record.parts.size()) record.parts[i] = {parts[i].numel, parts[i].dtype};
    record.parts_hash = mix(record.parts_hash, parts[i].numel);
    record.parts_hash = mix(record.parts_hash, static_cast<uint64_t>(parts[i].dtype));
  }
  record.sequence = tag.sequence;
  record.label_hash = mix_text(0, tag.label);
  record.note_hash = tag.note.hash;
  put_end(tag.label, record.label);
  record.note = tag.note.text;
  return record;
}

uint64_t fingerprint_of(const CollectiveRecord& record) {
  // The hash starts at 1, because 0 means an unknown hash.
  uint64_t hash = mix(1, static_cast<uint64_t>(record.operation));
  hash = mix(hash, static_cast<uint64_t>(record.reduce_op));
  hash = mix(hash, static_cast<uint64_t>(record.root));
  hash = mix(hash, static_cast<uint64_t>(record.part_count));
  hash = mix(hash, record.parts_hash);
  hash = mix(hash, record.sequence);
  hash = mix(hash, record.label_hash);
  return mix(hash, record.note_hash);
}

uint64_t hash_of(std::string_view text) { return mix_text(0, text); }
uint64_t hash_of(uint64_t one, uint64_t other) { return mix(one, other); }

std::string describe(const CollectiveRecord& record) {
  std::string text{name_of(record.operation)};
  if (traits_of(record.operation).reduces) text += fmt::format(" ({})", name_of(record.reduce_op));
  if (record.root >= 0) text += fmt::format(" from rank {}", record.root);
  const int listed = std::min<int>(record.part_count, kRecordedParts);
  for (int i = 0; i < listed; ++i) {
    const auto& part = record.parts[i];
    text += fmt::format("{} {} {}", i == 0 ? " of" : " +", part.numel, name_of(part.dtype));
  }
  if (record.part_count > listed) {
    text += fmt::format(" + {} more parts (hash {:016x})", record.part_count - listed,
                        record.parts_hash);
  }
  text += fmt::format(" '{}'", record.label.data());
  if (record.sequence != 0) text += fmt::format(" #{}", place_of(record.sequence));
  if (record.note_hash != 0) text += fmt::format(" after '{}'", record.note.data());
  return text;
}

std::string describe_difference(int rank, const CollectiveRecord& record, int other_rank,
                                const CollectiveRecord& other) {
  // Both ranks of a pair compose this text, and the job keeps the first one, so the text must be
  // the same on both ranks.
  if (other_rank < rank) return describe_difference(other_rank, other, rank, record);
  const std::string here = describe(record);
  const std::string there = describe(other);
  std::string text =
      fmt::format("rank {} issued {}, rank {} issued {}", rank, here, other_rank, there);
  if (here != there) return text;
  if (record.label_hash != other.label_hash)
    text += "; their names differ before the part that is shown";
  if (record.note_hash != other.note_hash)
    text += "; their notes differ after the part that is shown";
  return text;
}

}  // namespace fsdp
