// Defines RAdam's update rule (kernels/update.h).
//
// The arithmetic is that of torch.optim.RAdam in fp32:
//   g = grad · grad_scale
//   g = fma(p, weight_decay, g)                        (if weight_decay != 0, not decoupled)
//   m = fma(g, 1 - beta1, m·beta1)
//   v = fma((1 - beta2)·g, g, v·beta2)
//   p = p · (1 - lr·weight_decay)                                            (if decoupled)
//   p = p + (-lr · c1 · r · m) / (sqrt(v) + eps)             if the variance is tractable,
//   p = p + (-lr · c1 · m)                                   otherwise
// c1 = 1 / (1 - beta1^step). r is StepCount::rectification (kernels/count_steps.h), which is 0 if
// the variance is not tractable. The factors of m are multiplied in fp64 and rounded once. torch
// rounds after each of them, so an update differs from torch's by a few ulps.
// Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", algorithm 2.
#pragma once

#include <string_view>

namespace fsdp::kernels {

// The options of RAdam. The moments of RAdam are exp_avg and exp_avg_sq, in this order.
// Errors: InvalidArgument if a segment has no step counter.
struct RAdam {
  static constexpr std::string_view kName = "radam";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled_weight_decay = false;
};

}  // namespace fsdp::kernels
