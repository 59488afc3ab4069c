#include "kernels/grad_norm.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr NormType kTypes[] = {NormType::kOne, NormType::kTwo, NormType::kInf};

struct alignas(16) Scratch {
  std::array<double, 2> values;
};

using Grads = std::vector<std::vector<float>>;

double term(float x, NormType type) {
  const double magnitude = std::fabs(static_cast<double>(x));
  return type == NormType::kTwo ? magnitude * magnitude : magnitude;
}

double join(double left, double right, NormType type) {
  return type == NormType::kInf ? std::max(left, right) : left + right;
}

// Computes a block's result as the header describes it.
double block_result(std::span<const float> block, NormType type) {
  std::array<double, 8> sums{};
  for (size_t i = 0; i < block.size(); ++i) {
    sums[i % 8] = join(sums[i % 8], term(block[i], type), type);
  }
  for (const size_t apart : {4, 2, 1}) {
    for (size_t j = 0; j < apart; ++j) sums[j] = join(sums[j], sums[j + apart], type);
  }
  return sums[0];
}

// Computes the tree over the blocks level by level, as the header describes it.
double power_in_order(const Grads& grads, NormType type) {
  std::vector<double> level;
  for (const std::vector<float>& grad : grads) {
    for (size_t start = 0; start < grad.size(); start += 1024) {
      const size_t numel = std::min<size_t>(1024, grad.size() - start);
      level.push_back(block_result({grad.data() + start, numel}, type));
    }
  }
  if (level.empty()) return 0;
  while (level.size() > 1) {
    std::vector<double> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      next.push_back(join(level[i], level[i + 1], type));
    }
    if (level.size() % 2 != 0) next.push_back(level.back());
    level = std::move(next);
  }
  return level[0];
}

double power_one_by_one(const Grads& grads, NormType type) {
  double power = 0;
  for (const auto& grad : grads) {
    for (const float x : grad) power = join(power, term(x, type), type);
  }
  return power;
}

// Returns values of very different magnitudes, so that nearly every addition in double rounds. Then
// another order of additions gives other bits.
std::vector<float> spread_values(int64_t numel, uint32_t seed) {
  std::vector<float> result = test::values(numel, seed);
  int exponent = 0;
  for (float& value : result) {
    value = std::ldexp(value, exponent - 30);
    exponent = (exponent + 37) % 61;
  }
  return result;
}

struct Measured : GradNorm {
  double first_non_finite = -1;  // as the kernel writes it
};

void measure(Stream& stream, const std::vector<GradSegment>& segments, NormType type,
             GradNorm* norm, double* first) {
  std::vector<Scratch> scratch(static_cast<size_t>(norm_scratch_bytes(stream, segments)) /
                               sizeof(Scratch));
  grad_norm(stream, segments, type,
            {.norm = norm, .first_non_finite = first, .scratch = scratch.data()});
  stream.synchronize();
}

Measured norm_of(Stream& stream, const Grads& grads, NormType type) {
  Measured result;
  int64_t position = 0;
  {
    std::vector<GradSegment> segments;
    for (const auto& grad : grads) {
      segments.push_back({grad.data(), static_cast<int64_t>(grad.size()), position});
      position += 1000000;
    }
    measure(stream, segments, type, &result, &result.first_non_finite);
  }
  return result;
}

TEST_CASE("every norm has the bits of the order that the header fixes, for every size") {
  test::on_each_stream([](Stream& stream) {
    for (const NormType type : kTypes) {
      for (const int64_t numel :
           {0,    1,    3,    4,    7,    8,    9,     127,   128,   1009,  1023,
            1024, 1025, 2048, 4095, 4096, 4097, 16383, 16384, 16385, 65537, 1000007}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(numel);
        const Grads grads{spread_values(numel, 10)};
        const Measured result = norm_of(stream, grads, type);
        CHECK(result.power == power_in_order(grads, type));
        // The tolerance allows another order of a million additions in double.
        CHECK(result.power == doctest::Approx(power_one_by_one(grads, type)).epsilon(1e-12));
        CHECK(result.non_finite == 0);
        CHECK(result.first_non_finite == 0);
      }
    }
  });
}

TEST_CASE("the blocks of all segments make one tree, where empty segments have no part") {
  const auto stream = test::make_stream("norm");
  Grads grads;
  for (const int64_t numel : {5, 0, 1024, 1025, 0, 0, 40000, 1, 16384, 3 * 1024, 777}) {
    grads.push_back(spread_values(numel, static_cast<uint32_t>(grads.size())));
    for (const NormType type : kTypes) {
      CAPTURE(static_cast<int>(type));
      CAPTURE(grads.size());
      CHECK(norm_of(*stream, grads, type).power == power_in_order(grads, type));
    }
  }
  // Checks that the bits would be different in another order.
  for (const NormType type : {NormType::kOne, NormType::kTwo}) {
    CHECK(power_in_order(grads, type) != power_one_by_one(grads, type));
  }
}

TEST_CASE("the bits do not depend on where in memory a segment starts") {
  const auto stream = test::make_stream("norm");
  const std::vector<float> grad = spread_values(20 * 1024 + 5, 12);
  for (const NormType type : kTypes) {
    for (size_t offset = 0; offset < 16; ++offset) {
      std::vector<float> moved(offset, kNan);
      moved.insert(moved.end(), grad.begin(), grad.end());
      const GradSegment segment{moved.data() + offset, static_cast<int64_t>(grad.size())};
      GradNorm result;
      measure(*stream, {segment}, type, &result, nullptr);
      CHECK(result.power == power_in_order({grad}, type));
    }
  }
}

TEST_CASE("sums of exact terms are exact") {
  const auto stream = test::make_stream("norm");
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
  const auto stream = test::make_stream("norm");
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> grad(1000, -largest);
  const GradNorm result = norm_of(*stream, {grad}, NormType::kTwo);
  CHECK(result.non_finite == 0);
  CHECK(result.power == doctest::Approx(1000.0 * largest * static_cast<double>(largest)));
  const double tiny = 0x1p-149;
  CHECK(norm_of(*stream, {{0x1p-149F}}, NormType::kTwo).power == tiny * tiny);
  CHECK(norm_of(*stream, {{0.0F, -0x1p-149F}}, NormType::kInf).power == tiny);
}

TEST_CASE("one element that is not finite is seen wherever it is, and its position is told") {
  const auto stream = test::make_stream("norm");
  for (const NormType type : kTypes) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (int64_t position = 0; position < 100; ++position) {
        std::vector<float> grad(100, 1.0F);
        grad[static_cast<size_t>(position)] = bad;
        const Measured result = norm_of(*stream, {{1.0F}, {}, grad, {kNan}}, type);
        REQUIRE(result.non_finite == 1);
        REQUIRE(result.first_non_finite == 1 + 2000000 + position);
        REQUIRE(!std::isfinite(result.power));
      }
    }
  }
}

TEST_CASE("one element that is not finite is seen in every block of a large segment") {
  const auto stream = test::make_stream("norm");
  for (const NormType type : kTypes) {
    std::vector<float> grad(21 * 1024 + 5, 1.0F);
    for (size_t position = 3; position < grad.size(); position += 509) {
      CAPTURE(position);
      grad[position] = kInfinity;
      REQUIRE(norm_of(*stream, {{1.0F}, grad}, type).power == kInfinity);
      grad[position] = std::bit_cast<float>(0xffc12345);
      const Measured result = norm_of(*stream, {{1.0F}, grad}, type);
      REQUIRE(result.first_non_finite == 1 + 1000000 + position);
      REQUIRE(std::bit_cast<uint64_t>(result.power) == 0x7ff8000000000000);
      grad[position] = 1.0F;
    }
  }
}

TEST_CASE("an empty table has norm zero") {
  const auto stream = test::make_stream("norm");
  for (const NormType type : kTypes) {
    GradNorm result{.power = 5, .non_finite = 5};
    double first = 5;
    measure(*stream, {}, type, &result, &first);
    CHECK(result.power == 0);
    CHECK(result.non_finite == 0);
    CHECK(first == 0);
  }
}

TEST_CASE("value and flag lie side by side for one reduction over both") {
  CHECK(offsetof(GradNorm, power) == 0);
  CHECK(offsetof(GradNorm, non_finite) == sizeof(double));
  CHECK(sizeof(GradNorm) == 2 * sizeof(double));
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
  const auto stream = test::make_stream("norm");
  const GradNorm reduced;
  CHECK_THROWS_WITH_AS(clip_coefficient(*stream, &reduced, NormType::kTwo, -1, {}),
                       "clip_coefficient: max_norm is -1, expected 0 or more; hint: pass 0 or "
                       "more; pass infinity to clip nothing",
                       InvalidArgument);
  CHECK_THROWS_AS(clip_coefficient(*stream, &reduced, NormType::kTwo, kNan, {}), InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
