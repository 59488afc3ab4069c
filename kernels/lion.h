// Defines Lion's update rule (kernels/update.h).
//
// The arithmetic is that of lion-pytorch, operation by operation in fp32:
//   g = grad · grad_scale
//   c = fma(g, 1 - beta1, m·beta1)
//   m = fma(g, 1 - beta2, m·beta2)
//   p = p · (1 - lr·weight_decay) - lr · sign(c)
// sign is 1, -1, or 0 for a zero. A NaN stays NaN.
// Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2.
#pragma once

#include <string_view>

namespace fsdp::kernels {

// The options of Lion. Its only moment is exp_avg.
struct Lion {
  static constexpr std::string_view kName = "lion";
  double beta1 = 0.9;
  double beta2 = 0.99;
};

}  // namespace fsdp::kernels
