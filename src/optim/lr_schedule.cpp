#include <algorithm>
#include <cmath>
#include <numbers>

#include "fsdp/optim.h"

namespace fsdp {

double LrSchedule::factor(int64_t step) const {
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (shape == Shape::kConstant) return 1.0;
  // The factor of steps after total_steps is the factor of step total_steps.
  const int64_t decay_steps = std::max<int64_t>(1, total_steps - warmup_steps);
  const double progress = std::clamp(
      static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps), 0.0, 1.0);
  if (shape == Shape::kLinear) return 1.0 - progress;
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace fsdp
