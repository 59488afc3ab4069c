#include "fsdp/lr_schedule.h"

#include <doctest/doctest.h>

#include <cmath>

using fsdp::LrSchedule;

TEST_CASE(
    "factors rise from 0 over the warm-up, then fall to 0 on a line or half a cosine, or stay") {
  const LrSchedule linear{
      .shape = LrSchedule::Shape::kLinear, .warmup_steps = 4, .total_steps = 12};
  const LrSchedule cosine{
      .shape = LrSchedule::Shape::kCosine, .warmup_steps = 4, .total_steps = 12};
  const LrSchedule constant{.shape = LrSchedule::Shape::kConstant, .warmup_steps = 4};
  for (const LrSchedule& each : {linear, cosine, constant}) {
    CHECK(each.factor(0) == 0.0);
    CHECK(each.factor(1) == 0.25);
    CHECK(each.factor(4) == 1.0);
  }
  CHECK(linear.factor(6) == 0.75);
  CHECK(linear.factor(8) == 0.5);
  CHECK(linear.factor(12) == 0.0);
  CHECK(linear.factor(20) == 0.0);
  CHECK(cosine.factor(8) == doctest::Approx(0.5));
  CHECK(cosine.factor(6) == doctest::Approx(0.5 * (1 + std::sqrt(0.5))));
  CHECK(cosine.factor(12) == doctest::Approx(0.0));
  CHECK(constant.factor(1000) == 1.0);
  CHECK(LrSchedule{.total_steps = 10}.factor(0) == 1.0);  // no warm-up
}
