// Hands out ranges of a span of offsets: first fit, neighbours merged when given back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fsdp {

class RangeAllocator {
 public:
  // Serves [begin, end). Requires: both multiples of `granule`; every range is one, too.
  RangeAllocator(int64_t begin, int64_t end, int64_t granule)
      : granule_(granule), free_{{begin, end - begin}} {}

  // The offset of a range of at least `bytes`; empty if none is left.
  std::optional<int64_t> take(int64_t bytes);
  // Requires: taken with the same `bytes`.
  void give_back(int64_t offset, int64_t bytes);

 private:
  int64_t granule_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
};

}  // namespace fsdp
