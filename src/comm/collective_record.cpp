#include "comm/collective_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/fingerprint.h"

namespace fsdp {

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown";
}

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kBarrier:
      return "barrier";
  }
  return "unknown";
}

CollectiveRecord make_record(Operation operation, std::span<const CollectivePart> parts,
                             CollectiveTag tag, ReduceOp op, int root) {
  CollectiveRecord record{};
  record.operation = operation;
  record.reduce_op = op;
  record.root = root;
  record.part_count = static_cast<int32_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i < record.parts.size()) record.parts[i] = {parts[i].numel, parts[i].dtype};
    record.parts_hash = mix(record.parts_hash, parts[i].numel);
    record.parts_hash = mix(record.parts_hash, static_cast<uint64_t>(parts[i].dtype));
  }
  record.sequence = tag.sequence;
  std::copy_n(tag.label.data(), std::min<size_t>(tag.label.size(), kLabelBytes - 1),
              record.label.data());
  return record;
}

uint64_t fingerprint_of(const CollectiveRecord& record) {
  uint64_t hash = mix(1, static_cast<uint64_t>(record.operation));
  hash = mix(hash, static_cast<uint64_t>(record.reduce_op));
  hash = mix(hash, static_cast<uint64_t>(record.root));
  hash = mix(hash, static_cast<uint64_t>(record.part_count));
  hash = mix(hash, record.parts_hash);
  hash = mix(hash, record.sequence);
  return mix_text(hash, record.label.data());
}

std::string describe(const CollectiveRecord& record) {
  std::string text{name_of(record.operation)};
  const bool reduces =
      record.operation == Operation::kReduceScatter || record.operation == Operation::kAllReduce;
  if (reduces) text += fmt::format(" ({})", name_of(record.reduce_op));
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
  if (record.sequence != 0) text += fmt::format(" #{}", record.sequence);
  return text;
}

}  // namespace fsdp
