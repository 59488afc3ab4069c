#include "kernels/grad_norm.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr NormType kTypes[] = {NormType::kOne, NormType::kTwo, NormType::kInf};

double add_term(double power, float x, NormType type) {
  const double magnitude = std::fabs(static_cast<double>(x));
  switch (type) {
    case NormType::kOne:
      return power + magnitude;
    case NormType::kTwo:
      return power + magnitude * magnitude;
    default:
      return std::max(power, magnitude);
  }
}

GradNorm norm_of(Stream& stream, const std::vector<std::vector<float>>& grads, NormType type) {
  GradNorm result;
  {
    std::vector<GradSegment> segments;
    for (const auto& grad : grads) {
      segments.push_back({grad.data(), static_cast<int64_t>(grad.size())});
    }
    grad_norm(stream, segments, type, &result);
  }
  stream.synchronize();
  return result;
}

TEST_CASE("the power of every norm equals the plain sum in double, for every size") {
  test::on_each_stream([](Stream& stream) {
    for (const NormType type : kTypes) {
      for (const int64_t numel : test::kSizes) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(numel);
        const std::vector<std::vector<float>> grads{test::values(numel, 10, 3.0F),
                                                    test::values(7, 11)};
        double expected = 0;
        for (const auto& grad : grads) {
          for (const float x : grad) expected = add_term(expected, x, type);
        }
        const GradNorm result = norm_of(stream, grads, type);
        // Another order of a million additions in double.
        CHECK(result.power == doctest::Approx(expected).epsilon(1e-12));
        if (type == NormType::kInf) CHECK(result.power == expected);
        CHECK(result.non_finite == 0);
        CHECK(result.first_non_finite == -1);
      }
    }
  });
}

TEST_CASE("sums of exact terms are exact") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "norm");
  std::vector<float> grad(100003);
  double ones = 0;
  double squares = 0;
  for (size_t i = 0; i < grad.size(); ++i) {
    grad[i] = static_cast<float>(i % 251) - 125.0F;
    ones += std::fabs(grad[i]);
    squares += grad[i] * grad[i];
  }
  CHECK(norm_of(*stream, {grad}, NormType::kOne).power == ones);
  CHECK(norm_of(*stream, {grad}, NormType::kTwo).power == squares);
}

TEST_CASE("the largest and the smallest floats neither overflow nor vanish") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "norm");
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> grad(1000, -largest);
  const GradNorm result = norm_of(*stream, {grad}, NormType::kTwo);
  CHECK(result.non_finite == 0);
  CHECK(result.power == doctest::Approx(1000.0 * largest * static_cast<double>(largest)));
  const double tiny = 0x1p-149;
  CHECK(norm_of(*stream, {{0x1p-149F}}, NormType::kTwo).power == tiny * tiny);
  CHECK(norm_of(*stream, {{0.0F, -0x1p-149F}}, NormType::kInf).power == tiny);
}

TEST_CASE("one element that is not finite is seen wherever it is, and its segment is named") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "norm");
  for (const NormType type : kTypes) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (int64_t position = 0; position < 100; ++position) {
        std::vector<float> grad(100, 1.0F);
        grad[static_cast<size_t>(position)] = bad;
        const GradNorm result = norm_of(*stream, {{1.0F}, {}, grad, {kNan}}, type);
        REQUIRE(result.non_finite == 1);
        REQUIRE(result.first_non_finite == 2);
        REQUIRE(!std::isfinite(result.power));
      }
    }
  }
}

TEST_CASE("an empty table has norm zero") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "norm");
  for (const NormType type : kTypes) {
    GradNorm result{.power = 5, .non_finite = 5, .first_non_finite = 5};
    grad_norm(*stream, {}, type, &result);
    CHECK(result.power == 0);
    CHECK(result.non_finite == 0);
    CHECK(result.first_non_finite == -1);
  }
}

TEST_CASE("value and flag lie side by side for one reduction over both") {
  CHECK(offsetof(GradNorm, power) == 0);
  CHECK(offsetof(GradNorm, non_finite) == sizeof(double));
  CHECK(GradNorm::kReducedNumel == 2);
}

TEST_CASE("the coefficient is torch's: max_norm over the norm, at most one") {
  test::on_each_stream([](Stream& stream) {
    struct Case {
      NormType type;
      double power, max_norm;
      float norm, coefficient;
    };
    const std::vector<Case> cases{
        {NormType::kTwo, 16.0, 1.0, 4.0F, 1.0F / (4.0F + 1e-6F)},
        {NormType::kOne, 16.0, 2.0, 16.0F, 2.0F / (16.0F + 1e-6F)},
        {NormType::kInf, 0.5, 2.0, 0.5F, 1.0F},
        {NormType::kTwo, 0.0, 1.0, 0.0F, 1.0F},
        {NormType::kTwo, 9.0, 0.0, 3.0F, 0.0F},
        {NormType::kTwo, 9.0, kInfinity, 3.0F, 1.0F},
        {NormType::kTwo, kInfinity, 1.0, kInfinity, 0.0F},
        {NormType::kTwo, kInfinity, kInfinity, kInfinity, 1.0F},
        {NormType::kInf, kNan, 1.0, kNan, kNan},
    };
    for (const Case& c : cases) {
      CAPTURE(c.power);
      CAPTURE(c.max_norm);
      const GradNorm reduced{.power = c.power, .non_finite = std::isfinite(c.power) ? 0.0 : 3.0};
      float norm = -1;
      float coefficient = -1;
      float found_inf = -1;
      clip_coefficient(stream, &reduced, c.type, c.max_norm,
                       {.norm = &norm, .coefficient = &coefficient, .found_inf = &found_inf});
      stream.synchronize();
      CHECK(test::same(norm, c.norm));
      CHECK(test::same(coefficient, c.coefficient));
      CHECK(found_inf == (std::isfinite(c.power) ? 0.0F : 1.0F));
      clip_coefficient(stream, &reduced, c.type, c.max_norm, {});
      stream.synchronize();
    }
  });
}

TEST_CASE("a max_norm that is negative or NaN is refused") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "norm");
  const GradNorm reduced;
  CHECK_THROWS_WITH_AS(clip_coefficient(*stream, &reduced, NormType::kTwo, -1, {}),
                       "clip_coefficient: max_norm is -1; hint: a number that is not negative; "
                       "infinity to clip nothing",
                       InvalidArgument);
  CHECK_THROWS_AS(clip_coefficient(*stream, &reduced, NormType::kTwo, kNan, {}), InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
