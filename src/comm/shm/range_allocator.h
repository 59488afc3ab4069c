// An allocator of ranges of offsets. It uses first fit and merges neighbouring free ranges.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fsdp {

// The free ranges in a span of offsets. Not thread-safe.
class RangeAllocator {
 public:
  // Allocates from [begin, end). Both must be multiples of `granule`, so that every range begins
  // and ends at a multiple of it.
  RangeAllocator(int64_t begin, int64_t end, int64_t granule)
      : granule_(granule), free_{{begin, end - begin}} {}

  // Allocates a range of at least `bytes` and returns its offset. Empty if no free range is large
  // enough.
  std::optional<int64_t> take(int64_t bytes);
  // Frees a range. `bytes` must be the size with which the range was allocated.
  void give_back(int64_t offset, int64_t bytes);

 private:
  int64_t granule_;
  std::map<int64_t, int64_t> free_;  // by offset, in bytes
};

}  // namespace fsdp
