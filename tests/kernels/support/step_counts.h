// Computes step counters as kernels/count_steps.h describes them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/count_steps.h"

namespace fsdp::test {

inline double power_by_squaring(double base, int64_t exponent) {
  double result = 1;
  for (int bit = 0; bit < 63; ++bit) {
    if ((exponent >> bit & 1) != 0) result = result * base;
    base = base * base;
  }
  return result;
}

inline kernels::StepCount counted(int64_t step, double beta1, double beta2) {
  kernels::StepCount count;
  count.step = step;
  count.inverse_correction1 = 1 / (1 - power_by_squaring(beta1, step));
  count.root_correction2 = std::sqrt(1 - power_by_squaring(beta2, step));
  const double limit = 2 / (1 - beta2) - 1;
  const double power = power_by_squaring(beta2, step);
  const double length = limit - 2 * static_cast<double>(step) * power / (1 - power);
  if (length > 5) {
    count.rectification =
        std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)) *
        count.root_correction2;
  }
  return count;
}

}  // namespace fsdp::test
