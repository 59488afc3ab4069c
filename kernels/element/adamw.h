// Implements the arithmetic of kernels/adamw.h.
#pragma once

#include <variant>

#include "kernels/element/element.h"
#include "kernels/update.h"

namespace fsdp::kernels {

// The update of one element.
struct AdamWElement {
  // The scalars that all elements of a segment share. Each is rounded once from float64.
  struct Scalars {
    float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;
    float root_correction2, eps, negative_step_size;
  };

  // Updates one element. A decay, scale or correction of 1 changes no bit, so one function handles
  // the cases with and without them.
  FSDP_ELEMENT static void update(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                  const Scalars& s) {
    const float g = grad * s.grad_scale;
    exp_avg = fused(g, s.one_minus_beta1, exp_avg * s.beta1);
    exp_avg_sq = fused(s.one_minus_beta2 * g, g, exp_avg_sq * s.beta2);
    const float denominator = root(exp_avg_sq) / s.root_correction2 + s.eps;
    param = param * s.decay + (s.negative_step_size * exp_avg) / denominator;
  }
};

// The AdamW update, in the form that kernels/element/updates.h defines.
struct AdamWUpdate {
  using Rule = AdamW;
  using Scalars = AdamWElement::Scalars;
  using Decayed = AdamWElement;
  using Undecayed = AdamWElement;
  static constexpr int kMoments = 2;

  FSDP_ELEMENT static bool reads_moments(const Scalars& /*scalars*/) { return true; }
  FSDP_ELEMENT static float decay(double lr, double weight_decay) {
    return static_cast<float>(1.0 - lr * weight_decay);
  }
  FSDP_ELEMENT static Scalars host_scalars(const AdamW& rule) {
    return {.grad_scale = 1.0F,
            .decay = 1.0F,
            .beta1 = static_cast<float>(rule.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - rule.beta1),
            .beta2 = static_cast<float>(rule.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - rule.beta2),
            .root_correction2 = 1.0F,
            .eps = static_cast<float>(rule.eps),
            .negative_step_size = 0.0F};
  }
  FSDP_ELEMENT static void read_scalars(Scalars& scalars, double lr, const StepCount* step) {
    scalars.negative_step_size =
        static_cast<float>(step == nullptr ? -lr : -lr * step->inverse_correction1);
    if (step != nullptr) scalars.root_correction2 = static_cast<float>(step->root_correction2);
  }
};

inline std::variant<AdamWUpdate> update_of(const AdamW& /*rule*/) { return {}; }

}  // namespace fsdp::kernels
