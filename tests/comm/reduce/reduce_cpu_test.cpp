#include "comm/reduce/reduce_cpu.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "comm/reduce/narrow_float.h"
#include "comm/reduce/streaming_copy.h"

namespace fsdp {
namespace {

template <class Element>
std::vector<Element> reduce(const std::vector<std::vector<Element>>& sources, DType dtype,
                            ReduceOp op) {
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<Element> out(sources[0].size());
  reduce_in_order(pointers, out.data(), static_cast<int64_t>(out.size()), dtype, op);
  return out;
}

TEST_CASE("sums are formed in the order of the ranks") {
  // (1e8 + -1e8) + 1 is 1; 1e8 + (-1e8 + 1) is 0 in fp32.
  const std::vector<std::vector<float>> sources{{1e8F}, {-1e8F}, {1.0F}};
  CHECK(reduce(sources, DType::kFloat32, ReduceOp::kSum)[0] == 1.0F);
  const std::vector<std::vector<float>> turned{{1.0F}, {1e8F}, {-1e8F}};
  CHECK(reduce(turned, DType::kFloat32, ReduceOp::kSum)[0] == 0.0F);
}

TEST_CASE("16-bit types are summed in fp32 and rounded once") {
  // 256 + 0.75 + 0.75: each step would be rounded away in bfloat16 (its step there is 2).
  const auto bf16 = [](float value) {
    BFloat16Bits bits{};
    narrow(value, bits);
    return bits.bits;
  };
  const std::vector<std::vector<uint16_t>> sources{{bf16(256)}, {bf16(0.75F)}, {bf16(0.75F)}};
  CHECK(reduce(sources, DType::kBFloat16, ReduceOp::kSum)[0] == bf16(258));
}

TEST_CASE("an average is the sum divided, exactly as IEEE divides") {
  const std::vector<std::vector<float>> sources{{0.1F}, {0.2F}, {0.4F}};
  CHECK(reduce(sources, DType::kFloat32, ReduceOp::kAvg)[0] == (0.1F + 0.2F + 0.4F) / 3.0F);
}

TEST_CASE("a NaN on any rank is seen in sum and maximum, wherever it comes") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t place = 0; place < 3; ++place) {
    std::vector<std::vector<float>> sources{{1}, {5}, {2}};
    CHECK(reduce(sources, DType::kFloat32, ReduceOp::kMax)[0] == 5);
    sources[place][0] = nan;
    CHECK(std::isnan(reduce(sources, DType::kFloat32, ReduceOp::kMax)[0]));
    CHECK(std::isnan(reduce(sources, DType::kFloat32, ReduceOp::kSum)[0]));
  }
}

TEST_CASE("integers wrap instead of being undefined, and have a signed maximum") {
  const int32_t most = std::numeric_limits<int32_t>::max();
  const std::vector<std::vector<int32_t>> sources{{most, -3}, {1, -7}};
  CHECK(reduce(sources, DType::kInt32, ReduceOp::kSum) ==
        std::vector<int32_t>{std::numeric_limits<int32_t>::min(), -10});
  CHECK(reduce(sources, DType::kInt32, ReduceOp::kMax) == std::vector<int32_t>{most, -3});
  const std::vector<std::vector<uint8_t>> bytes{{200}, {100}};
  CHECK(reduce(bytes, DType::kUInt8, ReduceOp::kSum)[0] == 44);
}

TEST_CASE("the output may be any one of the inputs, for every size") {
  for (const int64_t numel : {0, 1, 3, 1009, 5000}) {
    for (int place = 0; place < 3; ++place) {
      std::array<std::vector<double>, 3> sources;
      for (int r = 0; r < 3; ++r) {
        for (int64_t i = 0; i < numel; ++i) sources[r].push_back(static_cast<double>(i * (r + 1)));
      }
      const std::array<const void*, 3> pointers{sources[0].data(), sources[1].data(),
                                                sources[2].data()};
      reduce_in_order(pointers, sources[place].data(), numel, DType::kFloat64, ReduceOp::kSum);
      for (int64_t i = 0; i < numel; ++i) CHECK(sources[place][i] == static_cast<double>(6 * i));
    }
  }
}

TEST_CASE("two, four and any other number of sources are summed alike") {
  constexpr int64_t kNumel = 1009;
  for (const size_t ranks : {1U, 2U, 3U, 4U, 5U, 8U}) {
    std::vector<std::vector<float>> sources(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      for (int64_t i = 0; i < kNumel; ++i) {
        sources[r].push_back(1.0F / static_cast<float>(1 + i * 7 + static_cast<int64_t>(r) * 131));
      }
    }
    const auto sums = reduce(sources, DType::kFloat32, ReduceOp::kSum);
    const auto largest = reduce(sources, DType::kFloat32, ReduceOp::kMax);
    int wrong = 0;
    for (int64_t i = 0; i < kNumel; ++i) {
      float sum = sources[0][i];
      for (size_t r = 1; r < ranks; ++r) sum += sources[r][i];
      wrong += sums[i] != sum;
      wrong += largest[i] != sources[0][i];
    }
    CAPTURE(ranks);
    CHECK(wrong == 0);
  }
}

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
  CHECK(reduce(sources, DType::kFloat16, ReduceOp::kAvg) == in_pieces);
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  reduce_in_order(pointers, sources[3].data(), numel, DType::kFloat16, ReduceOp::kAvg);
  CHECK(sources[3] == in_pieces);
}

TEST_CASE("every float16 widens to its value and narrows back to itself") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16Bits half{static_cast<uint16_t>(bits)};
    const float value = widen(half);
    const uint32_t rest = bits & 0x7fff;
    if (rest > 0x7c00) {
      CHECK(std::isnan(value));
      continue;
    }
    const int exponent = static_cast<int>(rest >> 10);
    const double fraction = rest & 0x3ff;
    const double expected = exponent == 31  ? std::numeric_limits<double>::infinity()
                            : exponent == 0 ? std::ldexp(fraction, -24)
                                            : std::ldexp(1024 + fraction, exponent - 25);
    CHECK(std::fabs(value) == expected);
    CHECK(std::signbit(value) == ((bits & 0x8000) != 0));
    Float16Bits back{};
    narrow(value, back);
    CHECK(back.bits == bits);
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even, and overflows to infinity") {
  const auto half = [](float value) {
    Float16Bits bits{};
    narrow(value, bits);
    return bits.bits;
  };
  CHECK(half(1.0F + 0x1p-11F) == 0x3c00);     // a tie, to even
  CHECK(half(1.0F + 0x1.8p-10F) == 0x3c02);   // a tie, to even
  CHECK(half(1.0F + 0x1.01p-11F) == 0x3c01);  // just above a tie
  CHECK(half(65519.0F) == 0x7bff);            // the largest
  CHECK(half(65520.0F) == 0x7c00);            // rounds up to infinity
  CHECK(half(0x1p-25F) == 0);                 // a tie with zero
  CHECK(half(0x1.0001p-25F) == 1);            // the smallest subnormal
  CHECK(half(-std::numeric_limits<float>::infinity()) == 0xfc00);
  const auto brain = [](float value) {
    BFloat16Bits bits{};
    narrow(value, bits);
    return bits.bits;
  };
  CHECK(brain(1.0F + 0x1p-8F) == 0x3f80);
  CHECK(brain(1.0F + 0x1.8p-7F) == 0x3f82);
  CHECK(brain(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK((brain(std::bit_cast<float>(0x7f800001U)) & 0x7f) != 0);  // a NaN stays one
}

}  // namespace
}  // namespace fsdp
