#include "checkpoint/shard_cut.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"

namespace fsdp {

ElementRange share_of(const StatePart& part) {
  constexpr int64_t kPageBytes = 4096;
  const int64_t element_bits = bits_of(part.dtype);
  const int64_t page_numel = std::max<int64_t>(kPageBytes * 8 / element_bits, 1);
  const int64_t unit = std::lcm(page_numel, part.granule);
  const int64_t share = round_up(divide_up(part.numel, part.holders), unit);
  const int64_t begin = std::min(part.holder * share, part.numel);
  return {.begin = part.begin + begin, .numel = std::min(share, part.numel - begin)};
}

}  // namespace fsdp
