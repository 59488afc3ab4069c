#include "kernels/accumulate.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <limits>
#include <string>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

using test::Elements;

TEST_CASE("every pair of dtypes and size adds with one rounding to float32 and one to the result") {
  const auto stream = test::make_stream("accumulate");
  for (const DType from : test::kElementTypes) {
    for (const DType to : test::kElementTypes) {
      for (const int64_t numel : test::kSizes) {
        CAPTURE(name_of(from));
        CAPTURE(name_of(to));
        CAPTURE(numel);
        Elements source(from, numel);
        Elements destination(to, numel);
        test::fill_with_values(source, 6, true);
        test::fill_with_values(destination, 7, true);
        Elements expected = destination;
        for (int64_t i = 0; i < numel; ++i) {
          const float product = source.get(i) * 0.3F;
          expected.set(i, expected.get(i) + product);
        }
        const AccumulateRun run{.source = source.data(),
                                .destination = destination.data(),
                                .numel = numel,
                                .source_dtype = from,
                                .destination_dtype = to};
        accumulate(*stream, {&run, 1}, 0.3F);
        int64_t wrong = 0;
        for (int64_t i = 0; i < numel; ++i) {
          wrong += !test::same(expected.get(i), destination.get(i));
        }
        CHECK(wrong == 0);
        CHECK(destination.guard_is_intact());
      }
    }
  }
}

TEST_CASE("runs that overwrite and runs that add go in one call on every stream") {
  test::on_each_stream([](Stream& stream) {
    const std::vector<float> first = test::values(1009, 8);
    const std::vector<float> second = test::values(65, 9);
    std::vector<float> main_grad(1074, std::numeric_limits<float>::quiet_NaN());
    std::fill(main_grad.begin() + 1009, main_grad.end(), 2.0F);
    {
      const std::vector<AccumulateRun> runs{
          {.source = first.data(),
           .destination = main_grad.data(),
           .numel = 1009,
           .overwrite = true},
          {.source = second.data(), .destination = main_grad.data() + 1009, .numel = 65}};
      accumulate(stream, runs);
    }
    stream.synchronize();
    int64_t wrong = 0;
    for (size_t i = 0; i < 1009; ++i) wrong += main_grad[i] != first[i];
    for (size_t i = 0; i < 65; ++i) wrong += main_grad[1009 + i] != 2.0F + second[i];
    CHECK(wrong == 0);
  });
}

TEST_CASE("a type that cannot be added is refused by name") {
  const auto stream = test::make_stream("accumulate");
  const AccumulateRun run{.source_dtype = DType::kFloat32, .destination_dtype = DType::kUInt8};
  CHECK_THROWS_WITH_AS(accumulate(*stream, {&run, 1}),
                       doctest::Contains("accumulate cannot convert float32 to uint8; hint: "),
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
