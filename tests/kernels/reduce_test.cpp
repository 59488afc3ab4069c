#include "kernels/reduce.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

template <class Element>
std::vector<Element> reduce(const std::vector<std::vector<Element>>& sources, DType dtype,
                            ReduceOp op) {
  const auto stream = test::make_stream("reduce");
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<Element> out(sources[0].size());
  const ReduceRun run{pointers, out.data(), static_cast<int64_t>(out.size()), dtype};
  kernels::reduce(*stream, {&run, 1}, op);
  return out;
}

TEST_CASE("sums are formed in the order of the ranks") {
  // In fp32, (1e8 + -1e8) + 1 is 1, but 1e8 + (-1e8 + 1) is 0.
  const std::vector<std::vector<float>> sources{{1e8F}, {-1e8F}, {1.0F}};
  CHECK(reduce(sources, DType::kFloat32, ReduceOp::kSum)[0] == 1.0F);
  const std::vector<std::vector<float>> turned{{1.0F}, {1e8F}, {-1e8F}};
  CHECK(reduce(turned, DType::kFloat32, ReduceOp::kSum)[0] == 0.0F);
}

TEST_CASE("16-bit types are summed in fp32 and rounded once") {
  // The sum is 256 + 0.75 + 0.75. At 256 the spacing of bfloat16 is 2, so bfloat16 would round each
  // addition away.
  const auto bf16 = [](float value) { return test::encode(DType::kBFloat16, value); };
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
  const auto stream = test::make_stream("reduce");
  for (const int64_t numel : {0, 1, 3, 1009, 5000}) {
    for (int place = 0; place < 3; ++place) {
      std::array<std::vector<double>, 3> sources;
      for (int r = 0; r < 3; ++r) {
        for (int64_t i = 0; i < numel; ++i) sources[r].push_back(static_cast<double>(i * (r + 1)));
      }
      const std::array<const void*, 3> pointers{sources[0].data(), sources[1].data(),
                                                sources[2].data()};
      const ReduceRun run{pointers, sources[place].data(), numel, DType::kFloat64};
      kernels::reduce(*stream, {&run, 1}, ReduceOp::kSum);
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

TEST_CASE("every dtype and operation has the bits of one accumulation and one rounding") {
  using test::Elements;
  test::on_each_stream([](Stream& stream) {
    for (const DType dtype : test::kElementTypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
        CAPTURE(name_of(dtype));
        CAPTURE(name_of(op));
        std::vector<Elements> sources;
        for (uint32_t r = 0; r < 3; ++r) {
          sources.emplace_back(dtype, 1009);
          test::fill_with_values(sources.back(), 40 + r, true);
        }
        Elements out(dtype, 1009), expected(dtype, 1009);
        {
          const std::vector<const void*> pointers{sources[0].data(), sources[1].data(),
                                                  sources[2].data()};
          const std::vector<ReduceRun> runs{{pointers, out.data(), 1009, dtype},
                                            {pointers, nullptr, 0, dtype}};
          kernels::reduce(stream, runs, op);
        }
        stream.synchronize();
        int64_t wrong = 0;
        for (int64_t i = 0; i < 1009; ++i) {
          float sum = sources[0].get(i);
          for (size_t r = 1; r < 3; ++r) {
            const float next = sources[r].get(i);
            if (op != ReduceOp::kMax) {
              sum += next;
            } else if (next > sum || std::isnan(next)) {
              sum = next;
            }
          }
          expected.set(i, op == ReduceOp::kAvg ? sum / 3 : sum);
          wrong += !test::same(out.get(i), expected.get(i));
        }
        CHECK(wrong == 0);
        CHECK(out.guard_is_intact());
      }
    }
  });
}

TEST_CASE("a run without sources, and an average of integers, are refused") {
  const auto stream = test::make_stream("reduce");
  int32_t value = 0;
  const void* const source = &value;
  const ReduceRun none{{}, &value, 1, DType::kInt32};
  CHECK_THROWS_WITH_AS(
      kernels::reduce(*stream, {&none, 1}, ReduceOp::kSum),
      "reduce: a run has 0 sources, expected 1 to 1024; hint: pass one source per rank",
      InvalidArgument);
  const ReduceRun integers{{&source, 1}, &value, 1, DType::kInt32};
  CHECK_THROWS_WITH_AS(kernels::reduce(*stream, {&integers, 1}, ReduceOp::kAvg),
                       "reduce cannot average int32; hint: use a floating type, or ReduceOp::kSum",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
