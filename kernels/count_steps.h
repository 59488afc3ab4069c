// Counts optimizer updates in device memory, because the host does not know whether a step is
// skipped.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A counter of a segment's updates, with the bias corrections of AdamW and RAdam for the next
// kernel. It is
// initialised to zero. The corrections are valid after the first count.
struct StepCount {
  int64_t step = 0;                // counted from 1; the number of the current update
  double inverse_correction1 = 0;  // 1 / (1 - beta1^step)
  double root_correction2 = 0;     // sqrt(1 - beta2^step)
  // RAdam's rectification · root_correction2, see below; 0 if the variance is not tractable
  double rectification = 0;
};

// The betas on which the corrections depend. An optimizer without betas leaves them 0. All
// corrections are then 1.
struct StepBetas {
  double beta1 = 0;
  double beta2 = 0;
};

// Adds 1 to each counter and computes its corrections. If *found_inf is not zero, nothing is
// counted. found_inf may be null. The counters and found_inf are device memory and are read in
// stream order. The call copies the array of pointers, so the caller may free it.
// Requires: the call is issued before the update on the same stream, because the update reads the
//   counters; each counter is listed once.
//
// The corrections are float64 and depend only on the step. beta^step is computed by repeated
// squaring. For each bit of the step, lowest first, the result is multiplied by the power if the
// bit is set; then the power is squared. One subtraction and one division or root follow. No
// library's pow is used, so the bits are the same on every device.
//
// RAdam's rectification is sqrt((ρ-4)·(ρ-2)·ρ∞ / ((ρ∞-4)·(ρ∞-2)·ρ)), where ρ∞ = 2 / (1 - beta2) - 1
// and ρ = ρ∞ - 2·step·beta2^step / (1 - beta2^step). The variance is tractable if ρ > 5.
void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf);

}  // namespace fsdp::kernels
