#include "comm/reduce/reduce_in_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "comm/reduce/streaming_copy.h"

namespace fsdp {
namespace {

TEST_CASE("a reduction too large for the caches gives the bits of its pieces, in place too") {
  constexpr int64_t kRanks = 8;
  const int64_t numel = kStreamFromBytes / (kRanks * kRanks * 2) + 37;
  std::vector<std::vector<uint16_t>> sources(kRanks, std::vector<uint16_t>(numel));
  for (int64_t r = 0; r < kRanks; ++r) {
    for (int64_t i = 0; i < numel; ++i) {
      sources[r][i] = static_cast<uint16_t>((i * 7919 + r * 104'729) & 0xbbff);
    }
  }
  std::vector<uint16_t> in_pieces(numel);
  for (int64_t begin = 0; begin < numel; begin += 1000) {
    std::vector<const void*> pointers;
    for (const auto& source : sources) pointers.push_back(source.data() + begin);
    reduce_in_order(pointers, in_pieces.data() + begin, std::min<int64_t>(1000, numel - begin),
                    DType::kFloat16, ReduceOp::kAvg);
  }
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<uint16_t> out(numel);
  reduce_in_order(pointers, out.data(), numel, DType::kFloat16, ReduceOp::kAvg);
  CHECK(out == in_pieces);
  reduce_in_order(pointers, sources[3].data(), numel, DType::kFloat16, ReduceOp::kAvg);
  CHECK(sources[3] == in_pieces);
}

}  // namespace
}  // namespace fsdp
