// Implements the arithmetic of kernels/count_steps.h.
#pragma once

#include "kernels/count_steps.h"
#include "kernels/element/element.h"

namespace fsdp::kernels {

// Returns base^exponent by repeated squaring, which gives the same bits on every device.
FSDP_ELEMENT double power_of(double base, int64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

// Returns the value of the counter after `step` updates.
FSDP_ELEMENT StepCount count_at(int64_t step, const StepBetas& betas) {
  return {.step = step,
          .inverse_correction1 = 1.0 / (1.0 - power_of(betas.beta1, step)),
          .root_correction2 = root(1.0 - power_of(betas.beta2, step))};
}

}  // namespace fsdp::kernels
