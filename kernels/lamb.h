// Defines LAMB's update rule (kernels/update.h).
//
// The arithmetic in fp32:
//   g = grad · grad_scale
//   m = fma(g, 1 - beta1, m·beta1)
//   v = fma((1 - beta2)·g, g, v·beta2)
//   r = (c1·m) / fma(sqrt(v), 1/c2, eps)
//   r = fma(p, weight_decay, r)                                        (if weight_decay != 0)
//   p = fma(r, -lr·trust_ratio, p)
// The corrections c1 and c2 are those of kernels/count_steps.h. The trust ratio is the norm of the
// parameter divided by the norm of r, over the whole parameter (kernels/trust_ratios.h).
// Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
// algorithm 2, with the bias corrections of version 1.
#pragma once

#include <string_view>

namespace fsdp::kernels {

// The options of LAMB. The moments of LAMB are exp_avg and exp_avg_sq, in this order.
// Errors: InvalidArgument if a segment has no step counter.
struct Lamb {
  static constexpr std::string_view kName = "lamb";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
};

}  // namespace fsdp::kernels
