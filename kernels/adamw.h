// Defines AdamW's update rule (kernels/update.h).
//
// The arithmetic is that of torch::optim::AdamW, operation by operation in fp32. It uses fused
// multiply-adds where LibTorch's vector kernels do:
//   g = grad · grad_scale
//   p = p · (1 - lr·weight_decay)
//   m = fma(g, 1 - beta1, m·beta1)
//   v = fma((1 - beta2)·g, g, v·beta2)
//   p = p + (-lr · c1 · m) / (sqrt(v) / c2 + eps)
// The corrections are those of kernels/count_steps.h: c1 = 1 / (1 - beta1^step) and
// c2 = sqrt(1 - beta2^step). -lr · c1 and the other scalars are computed in fp64 and rounded once.
// exp_avg and exp_avg_sq equal torch's bit for bit. param can differ in its last bit for two
// reasons. LibTorch divides lr by 1 - beta1^step, which it computes with pow, so the step size can
// round to the neighbouring value. LibTorch's square root may be MKL's, which is not correctly
// rounded.
// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
#pragma once

#include <string_view>

namespace fsdp::kernels {

// The options of AdamW. The moments of AdamW are exp_avg and exp_avg_sq, in this order. A segment
// without a step counter gets no bias correction.
struct AdamW {
  static constexpr std::string_view kName = "adamw";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

}  // namespace fsdp::kernels
