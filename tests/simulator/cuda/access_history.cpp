#include "simulator/cuda/access_history.h"

#include <algorithm>
#include <iterator>

namespace fsdp::testing::sim {

// Splits the segment that contains the address, so that a segment begins at the address.
void AccessHistory::cut(uint64_t address) {
  auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return;
  const auto segment = std::prev(after);
  if (segment->first == address || segment->second.end <= address) return;
  Segment rest = segment->second;
  segment->second.end = address;
  segments_.emplace_hint(after, address, std::move(rest));
}

void AccessHistory::touch(const Operation& now, const ptx::ByteRange& bytes, bool writes,
                          const Found& found) {
  if (bytes.begin == bytes.end) return;
  cut(bytes.begin);
  cut(bytes.end);
  writes ? write(now, bytes, found) : read(now, bytes, found);
}

void AccessHistory::write(const Operation& now, const ptx::ByteRange& bytes, const Found& found) {
  const auto first = segments_.lower_bound(bytes.begin);
  const auto end = segments_.lower_bound(bytes.end);
  for (auto at = first; at != end; ++at) {
    const auto check = [&](const Operation* before, bool wrote) {
      if (before == nullptr || before == &now || happens_before(*before, now)) return;
      found({before, &now, wrote, true, {at->first, at->second.end}});
    };
    check(at->second.writer, true);
    for (const Operation* reader : at->second.readers) check(reader, false);
  }
  // Later accesses only have to be ordered with this write, so it replaces the history of its
  // bytes.
  const auto after = segments_.erase(first, end);
  segments_.emplace_hint(after, bytes.begin, Segment{.end = bytes.end, .writer = &now});
}

void AccessHistory::read(const Operation& now, const ptx::ByteRange& bytes, const Found& found) {
  auto at = segments_.lower_bound(bytes.begin);
  for (uint64_t begin = bytes.begin; begin < bytes.end; ++at) {
    if (at == segments_.end() || at->first > begin) {  // bytes that no operation has accessed
      const uint64_t next = at == segments_.end() ? bytes.end : std::min(bytes.end, at->first);
      at = segments_.emplace_hint(at, begin, Segment{.end = next});
    }
    Segment& segment = at->second;
    const Operation* const writer = segment.writer;
    if (writer != nullptr && writer != &now && !happens_before(*writer, now)) {
      found({writer, &now, true, false, {begin, segment.end}});
    }
    std::erase_if(segment.readers,
                  [&](const Operation* reader) { return reader->stream == now.stream; });
    segment.readers.push_back(&now);
    begin = segment.end;
  }
  // Merges neighbours with equal history, so that segments do not multiply.
  for (at = segments_.lower_bound(bytes.begin); at->second.end < bytes.end;) {
    const auto next = std::next(at);
    const bool same = next->second.writer == at->second.writer &&
                      next->second.readers == at->second.readers && next->first == at->second.end;
    if (!same) {
      at = next;
      continue;
    }
    at->second.end = next->second.end;
    segments_.erase(next);
  }
}

}  // namespace fsdp::testing::sim
