// Computes the learning rate of a step from its number, with the formulas of transformers'
// get_…_schedule functions.
#pragma once

#include <cstdint>

namespace fsdp {

// A schedule of learning-rate factors. The factor rises from 0 to 1 in `warmup_steps`. Then it has
// the `shape`. The first step (step 0) uses factor(0). Steps after total_steps have the factor of
// step total_steps, except under kInverseSqrt.
struct LrSchedule {
  enum class Shape : uint8_t {
    kConstant,
    kLinear,             // falls to 0 at total_steps
    kCosine,             // falls to min_factor along `cycles` waves of a cosine
    kPolynomial,         // falls to min_factor; `power` is the exponent
    kInverseSqrt,        // falls like 1 / sqrt(step)
    kWarmupStableDecay,  // stays 1, then falls to min_factor in the last decay_steps
  };
  // The form of a rise or fall.
  enum class Curve : uint8_t { kLinear, kCosine, kOneMinusSqrt };

  Shape shape = Shape::kLinear;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_factor = 0;
  double cycles = 0.5;  // 0.5: from the top of the wave to its bottom
  double power = 1;
  int64_t timescale = 0;  // of kInverseSqrt; 0: warmup_steps, or 10,000 if there is no warm-up
  // Under kWarmupStableDecay, the warm-up begins at min_factor and has the form `warmup`.
  int64_t decay_steps = 0;
  Curve warmup = Curve::kLinear;
  Curve decay = Curve::kCosine;

  double factor(int64_t step) const;
};

}  // namespace fsdp
