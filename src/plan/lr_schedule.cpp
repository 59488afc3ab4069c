// The formulas are those of transformers/optimization.py.
#include "fsdp/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {
namespace {

double share(int64_t done, int64_t all) {
  return static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, all));
}

double rise(LrSchedule::Curve curve, double progress) {
  switch (curve) {
    case LrSchedule::Curve::kLinear:
      return progress;
    case LrSchedule::Curve::kCosine:
      return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
    case LrSchedule::Curve::kOneMinusSqrt:
      return 1.0 - std::sqrt(1.0 - progress);
  }
  return 0;  // unreachable: every curve returns
}

double fall(LrSchedule::Curve curve, double cycles, double progress) {
  switch (curve) {
    case LrSchedule::Curve::kLinear:
      return 1.0 - progress;
    case LrSchedule::Curve::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
    case LrSchedule::Curve::kOneMinusSqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0;  // unreachable: every curve returns
}

}  // namespace

double LrSchedule::factor(int64_t step) const {
  const auto above_min = [&](double part) { return part * (1.0 - min_factor) + min_factor; };
  const bool has_stages = shape == Shape::kWarmupStableDecay;
  if (step < warmup_steps) {
    const double progress = share(step, warmup_steps);
    return has_stages ? above_min(rise(warmup, progress)) : progress;
  }
  // The factor of steps after total_steps is the factor of step total_steps.
  const double progress =
      std::clamp(share(step - warmup_steps, total_steps - warmup_steps), 0.0, 1.0);
  switch (shape) {
    case Shape::kConstant:
      return 1.0;
    case Shape::kLinear:
      return 1.0 - progress;
    case Shape::kCosine:
      return above_min(fall(Curve::kCosine, cycles, progress));
    case Shape::kPolynomial:
      return above_min(std::pow(1.0 - progress, power));
    case Shape::kInverseSqrt: {
      const int64_t unset = warmup_steps > 0 ? warmup_steps : 10'000;
      const int64_t scale = timescale > 0 ? timescale : unset;
      return 1.0 / std::sqrt(share(step - warmup_steps + scale, scale));
    }
    case Shape::kWarmupStableDecay: {
      const int64_t decayed = step - (total_steps - decay_steps);
      if (decayed < 0) return 1.0;
      return decayed < decay_steps ? above_min(fall(decay, cycles, share(decayed, decay_steps)))
                                   : min_factor;
    }
  }
  return 0;  // unreachable: every shape returns
}

}  // namespace fsdp
