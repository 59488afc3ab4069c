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

// Returns RAdam's rectification; 0 if the variance is not tractable. `power2` is beta2^step.
FSDP_ELEMENT double rectification_of(int64_t step, double beta2, double power2) {
  const double limit = 2.0 / (1.0 - beta2) - 1.0;
  const double length = limit - 2.0 * static_cast<double>(step) * power2 / (1.0 - power2);
  if (!(length > 5.0)) return 0;
  return root((length - 4.0) * (length - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * length));
}

// Returns the value of the counter after `step` updates.
FSDP_ELEMENT StepCount count_at(int64_t step, const StepBetas& betas) {
  const double power2 = power_of(betas.beta2, step);
  const double root_correction2 = root(1.0 - power2);
  return {.step = step,
          .inverse_correction1 = 1.0 / (1.0 - power_of(betas.beta1, step)),
          .root_correction2 = root_correction2,
          .rectification = rectification_of(step, betas.beta2, power2) * root_correction2};
}

}  // namespace fsdp::kernels
