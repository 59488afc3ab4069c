// Counts optimizer updates in device memory, because the host does not know if a step is skipped.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A counter of a segment's updates, with AdamW's bias corrections for the next kernel. Initially
// zero; the corrections are valid once a step was counted.
struct StepCount {
  int64_t step = 0;                // counted from 1: the number of the update under way
  double inverse_correction1 = 0;  // 1 / (1 - beta1^step)
  double root_correction2 = 0;     // sqrt(1 - beta2^step)
};

// The betas that the corrections depend on. Optimizers without betas leave zeros, which make every
// correction 1.
struct StepBetas {
  double beta1 = 0;
  double beta2 = 0;
};

// Adds 1 to each counter and computes its corrections, unless *found_inf is not zero (found_inf may
// be null). Issue it before the update on the same stream, so that a skipped update is not counted.
// List each counter once. Counters and found_inf are device memory, read in stream order. The call
// copies the table.
//
// Corrections are a function of the step alone, in float64. beta^step is computed by repeated
// squaring: for each bit of the step, lowest first, the result is multiplied by the power if the
// bit is set, and the power by itself. One subtraction and one division or root follow. No pow of a
// library is used, so the bits are the same on every device.
void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf);

}  // namespace fsdp::kernels
