// Counts updates where they are decided: in the device's memory, since the host does not know
// whether a step is skipped.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// The updates that a segment has seen, and what AdamW corrects by in the next kernel. Zeros at
// first; the corrections have a meaning once a step was counted.
struct StepCount {
  int64_t step = 0;                // counted from 1: the number of the update under way
  double inverse_correction1 = 0;  // 1 / (1 - beta1^step)
  double root_correction2 = 0;     // sqrt(1 - beta2^step)
};

// Zeros, for optimizers without: corrections of 1.
struct StepBetas {
  double beta1 = 0;
  double beta2 = 0;
};

// Adds 1 to each counter and forms its corrections, unless found_inf (may be null) points at
// something that is not zero. Issued before the update on the same stream, so that a skipped update
// is not counted although the host does not know of it. Each counter is listed once; counters and
// found_inf are device memory, read in stream order. The table is copied by the call.
//
// Corrections are a function of the step alone, in float64: beta^step by repeated squaring (for
// each bit of the step from the lowest on: the result is multiplied by the power where the bit is
// set, the power by itself), then one subtraction, and one division or root. No library's pow: the
// bits are the same on every device.
void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf);

}  // namespace fsdp::kernels
