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
  return count;
}

}  // namespace fsdp::test
