// The arithmetic of kernels/adamw.h.
#pragma once

#include "kernels/adamw.h"
#include "kernels/element/element.h"

namespace fsdp::kernels {

// What all elements of a segment have in common, each rounded once from float64.
struct AdamWScalars {
  float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float root_correction2, eps, negative_step_size;
};

// What the host knows of them; the rest is in device memory.
FSDP_ELEMENT AdamWScalars host_scalars(double lr, double weight_decay,
                                       const AdamWOptions& options) {
  return {.grad_scale = 1.0F,
          .decay = static_cast<float>(1.0 - lr * weight_decay),
          .beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .root_correction2 = 1.0F,
          .eps = static_cast<float>(options.eps),
          .negative_step_size = static_cast<float>(-lr)};
}

FSDP_ELEMENT void read_scalars(AdamWScalars& scalars, double lr, const StepCount* step,
                               const float* grad_scale) {
  if (grad_scale != nullptr) scalars.grad_scale = *grad_scale;
  if (step == nullptr) return;
  scalars.negative_step_size = static_cast<float>(-lr * step->inverse_correction1);
  scalars.root_correction2 = static_cast<float>(step->root_correction2);
}

// Multiplying by a decay or scale of exactly 1 and dividing by a correction of 1 change no bit, so
// one function serves with and without them.
FSDP_ELEMENT void adamw_element(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                const AdamWScalars& s) {
  const float g = grad * s.grad_scale;
  exp_avg = fused(g, s.one_minus_beta1, exp_avg * s.beta1);
  exp_avg_sq = fused(s.one_minus_beta2 * g, g, exp_avg_sq * s.beta2);
  const float denominator = root(exp_avg_sq) / s.root_correction2 + s.eps;
  param = param * s.decay + (s.negative_step_size * exp_avg) / denominator;
}

}  // namespace fsdp::kernels
