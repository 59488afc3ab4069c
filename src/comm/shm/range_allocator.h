// An allocator of ranges in a span of offsets: first fit; free neighbours are merged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fsdp {

// Ranges of a span of offsets. Not thread-safe.
class RangeAllocator {
 public:
  // Serves [begin, end). Requires: both multiples of `granule`, as then every range is.
  RangeAllocator(int64_t begin, int64_t end, int64_t granule)
      : granule_(granule), free_{{begin, end - begin}} {}

  // Allocates a range of at least `bytes` and returns its offset; empty if none is left.
  std::optional<int64_t> take(int64_t bytes);
  // Frees a range. Requires: allocated with the same `bytes`.
  void give_back(int64_t offset, int64_t bytes);

 private:
  int64_t granule_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
};

}  // namespace fsdp
