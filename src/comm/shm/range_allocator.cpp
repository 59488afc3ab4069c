#include "comm/shm/range_allocator.h"

#include <iterator>

#include "base/bytes.h"

namespace fsdp {

std::optional<int64_t> RangeAllocator::take(int64_t bytes) {
  bytes = round_up(bytes, granule_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, available] = *range;
    if (available < bytes) continue;
    free_.erase(range);
    if (available > bytes) free_.emplace(offset + bytes, available - bytes);
    return offset;
  }
  return std::nullopt;
}

void RangeAllocator::give_back(int64_t offset, int64_t bytes) {
  bytes = round_up(bytes, granule_);
  // The range is merged with the free range after it, then with the free range before it, so no two
  // free ranges are adjacent.
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

}  // namespace fsdp
