#include "kernels/cast_pack.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

using test::Elements;

// Returns the first index at which destination is not the rounded source · scale, or -1 if there is
// none.
int64_t first_wrong_cast(const Elements& source, const Elements& destination, float scale) {
  for (int64_t i = 0; i < source.numel(); ++i) {
    Elements expected(destination.dtype(), 1);
    expected.set(0, source.get(i) * scale);
    if (!test::same(expected.get(0), destination.get(i))) return i;
  }
  return -1;
}

TEST_CASE("every pair of dtypes and size is cast to the nearest even, specials included") {
  for (const DType from : test::kElementTypes) {
    for (const DType to : test::kElementTypes) {
      for (const int64_t numel : test::kSizes) {
        for (const float scale : {1.0F, 1.0F / 3.0F}) {
          CAPTURE(name_of(from));
          CAPTURE(name_of(to));
          CAPTURE(numel);
          CAPTURE(scale);
          Elements source(from, numel);
          test::fill_with_values(source, 1, true);
          Elements destination(to, numel);
          const auto stream = test::make_stream("cast");
          const CastRun run{.source = source.data(),
                            .destination = destination.data(),
                            .numel = numel,
                            .source_dtype = from,
                            .destination_dtype = to};
          cast_pack(*stream, {&run, 1}, scale);
          CHECK(first_wrong_cast(source, destination, scale) == -1);
          CHECK(destination.guard_is_intact());
        }
      }
    }
  }
}

TEST_CASE("all 65536 values of the 16-bit types survive a way to float32 and back") {
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(half));
    Elements source(half, 65536);
    for (int64_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(static_cast<uint16_t*>(source.data()) + i, &bits, sizeof bits);
    }
    Elements wide(DType::kFloat32, 65536);
    Elements back(half, 65536);
    const auto stream = test::make_stream("cast");
    const CastRun there{source.data(), wide.data(), 65536, half, DType::kFloat32};
    const CastRun again{wide.data(), back.data(), 65536, DType::kFloat32, half};
    cast_pack(*stream, {&there, 1});
    cast_pack(*stream, {&again, 1});
    int64_t wrong = 0;
    for (int64_t i = 0; i < 65536; ++i) {
      wrong += !test::same(wide.get(i), test::decode(half, static_cast<uint16_t>(i)));
      if (std::isnan(wide.get(i))) {
        const uint32_t quiet = half == DType::kBFloat16 ? 0x40U : 0x200U;
        wrong += back.bits(i) != (source.bits(i) | quiet);
      } else {
        wrong += back.bits(i) != source.bits(i);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("float32 next to every tie of the 16-bit types rounds to the right side") {
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(half));
    Elements source(DType::kFloat32, 3 * 65536);
    for (int64_t i = 0; i < 65536; ++i) {
      const float low = test::decode(half, static_cast<uint16_t>(i));
      const float high = test::decode(half, static_cast<uint16_t>(i + 1));
      const auto tie = static_cast<float>((static_cast<double>(low) + high) / 2);
      source.set(3 * i, tie);
      source.set(3 * i + 1, std::nextafter(tie, -std::numeric_limits<float>::infinity()));
      source.set(3 * i + 2, std::nextafter(tie, std::numeric_limits<float>::infinity()));
    }
    Elements destination(half, source.numel());
    const auto stream = test::make_stream("cast");
    const CastRun run{source.data(), destination.data(), source.numel(), DType::kFloat32, half};
    cast_pack(*stream, {&run, 1});
    CHECK(first_wrong_cast(source, destination, 1.0F) == -1);
  }
}

TEST_CASE("many runs of different dtypes go in one call, after which the table may be gone") {
  test::on_each_stream([](Stream& stream) {
    Elements a(DType::kFloat32, 5);
    Elements b(DType::kBFloat16, 1009);
    Elements packed(DType::kFloat32, 1014);
    test::fill_with_values(a, 2, false);
    test::fill_with_values(b, 3, false);
    {
      std::vector<CastRun> runs{{a.data(), packed.data(), 5, DType::kFloat32, DType::kFloat32},
                                {nullptr, nullptr, 0, DType::kFloat16, DType::kFloat32},
                                {b.data(), static_cast<float*>(packed.data()) + 5, 1009,
                                 DType::kBFloat16, DType::kFloat32}};
      cast_pack(stream, runs);
      runs.assign(runs.size(), CastRun{});
    }
    stream.synchronize();
    int64_t wrong = 0;
    for (int64_t i = 0; i < 1014; ++i) {
      wrong += packed.get(i) != (i < 5 ? a.get(i) : b.get(i - 5));
    }
    CHECK(wrong == 0);
    CHECK(packed.guard_is_intact());
  });
}

TEST_CASE("equal dtypes without a scale are copied byte by byte, whatever the type") {
  const auto stream = test::make_stream("cast");
  const std::vector<int64_t> source{1, -7, std::numeric_limits<int64_t>::min()};
  std::vector<int64_t> destination(3);
  CastRun run{source.data(), destination.data(), 3, DType::kInt64, DType::kInt64};
  cast_pack(*stream, {&run, 1});
  CHECK(destination == source);

  const uint32_t signalling_nan = 0x7fa00001;
  uint32_t copied = 0;
  run = {&signalling_nan, &copied, 1, DType::kFloat32, DType::kFloat32};
  cast_pack(*stream, {&run, 1});
  CHECK(copied == signalling_nan);
}

TEST_CASE("a run is scaled in place") {
  const auto stream = test::make_stream("cast");
  std::vector<float> data{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  const CastRun run{data.data(), data.data(), 17, DType::kFloat32, DType::kFloat32};
  cast_pack(*stream, {&run, 1}, 0.5F);
  for (int i = 0; i < 17; ++i) CHECK(data[i] == 0.5F * (i + 1));
}

TEST_CASE("a dtype that is not converted is refused by name") {
  const auto stream = test::make_stream("cast");
  const CastRun run{nullptr, nullptr, 0, DType::kInt64, DType::kFloat32};
  CHECK_THROWS_WITH_AS(
      cast_pack(*stream, {&run, 1}),
      "cast_pack cannot convert int64 to float32; hint: convert only between float32, bfloat16 and "
      "float16; copy other types without conversion, with scale 1",
      InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
