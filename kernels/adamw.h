// AdamW's rule (kernels/update.h).
//
// The arithmetic is torch::optim::AdamW's, operation by operation in fp32, fused multiply-adds
// where LibTorch's vector kernels have them:
//   g = grad · grad_scale
//   p = p · (1 - lr·weight_decay)
//   m = fma(g, 1 - beta1, m·beta1)
//   v = fma((1 - beta2)·g, g, v·beta2)
//   p = p + (-lr · c1 · m) / (sqrt(v) / c2 + eps)
// with the corrections of kernels/count_steps.h, c1 = 1 / (1 - beta1^step) and
// c2 = sqrt(1 - beta2^step). -lr · c1 and the other scalars are formed in fp64 and rounded once.
// exp_avg and exp_avg_sq are torch's bit for bit. param is too, but for two things: LibTorch
// divides lr by 1 - beta1^step, with pow's power, which can round the step size to the neighbour,
// and its square root may be MKL's, which can, too. Source:
// Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
#pragma once

#include <string_view>

namespace fsdp::kernels {

// Moments: exp_avg, exp_avg_sq. Without a step there is no bias correction.
struct AdamW {
  static constexpr std::string_view kName = "adamw";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

}  // namespace fsdp::kernels
