#include "kernels/fill.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <string>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

using test::Elements;

TEST_CASE("runs of every dtype and size are filled, and nothing beside them") {
  test::on_each_stream([](Stream& stream) {
    for (const DType dtype : test::kElementTypes) {
      for (const int64_t numel : test::kSizes) {
        CAPTURE(name_of(dtype));
        CAPTURE(numel);
        Elements zeros(dtype, numel);
        Elements nans(dtype, numel);
        const FillRun zero{zeros.data(), numel, dtype};
        const FillRun nan{nans.data(), numel, dtype};
        fill_zero(stream, {&zero, 1});
        fill_nan(stream, {&nan, 1});
        stream.synchronize();
        int64_t wrong = 0;
        for (int64_t i = 0; i < numel; ++i) {
          wrong += zeros.bits(i) != 0;
          wrong += !std::isnan(nans.get(i));
        }
        CHECK(wrong == 0);
        CHECK(zeros.guard_is_intact());
        CHECK(nans.guard_is_intact());
      }
    }
  });
}

TEST_CASE("several gaps are zeroed in one call and what lies between stays") {
  const auto stream = test::make_stream("fill");
  std::vector<float> data(20, 1.0F);
  const std::vector<FillRun> gaps{
      {data.data() + 2, 3}, {data.data() + 5, 0}, {data.data() + 19, 1}};
  fill_zero(*stream, gaps);
  for (size_t i = 0; i < data.size(); ++i) {
    CHECK(data[i] == ((i >= 2 && i < 5) || i == 19 ? 0.0F : 1.0F));
  }
}

TEST_CASE("float64 takes NaN and integers take zero") {
  const auto stream = test::make_stream("fill");
  double wide = 1;
  int64_t integer = 7;
  const FillRun nan{&wide, 1, DType::kFloat64};
  const FillRun zero{&integer, 1, DType::kInt64};
  fill_nan(*stream, {&nan, 1});
  fill_zero(*stream, {&zero, 1});
  CHECK(std::isnan(wide));
  CHECK(integer == 0);
  CHECK_THROWS_WITH_AS(fill_nan(*stream, {&zero, 1}),
                       "fill_nan: int64 has no NaN; hint: use fill_zero, or a floating type",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
