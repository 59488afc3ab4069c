// Implements the arithmetic of kernels/lamb.h.
#pragma once

#include <variant>

#include "kernels/element/element.h"
#include "kernels/update.h"

namespace fsdp::kernels {

// The update of one element.
struct LambElement {
  // The scalars that all elements of a segment share. Each is rounded once from float64.
  struct Scalars {
    float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;
    float correction1, inverse_root2, eps, negative_step_size;
  };

  // Updates the moments of an element and returns r.
  FSDP_ELEMENT static float direction(float param, float grad, float& exp_avg, float& exp_avg_sq,
                                      const Scalars& s) {
    const float g = grad * s.grad_scale;
    exp_avg = fused(g, s.one_minus_beta1, exp_avg * s.beta1);
    exp_avg_sq = fused(s.one_minus_beta2 * g, g, exp_avg_sq * s.beta2);
    const float denominator = fused(root(exp_avg_sq), s.inverse_root2, s.eps);
    const float r = (s.correction1 * exp_avg) / denominator;
    // Selected without a branch, so that the loop vectorises. A decay of 0 would not be neutral:
    // 0 · inf is NaN.
    const float decayed = fused(param, s.decay, r);
    return s.decay != 0.0F ? decayed : r;
  }
  FSDP_ELEMENT static void update(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                  const Scalars& s) {
    const float r = direction(param, grad, exp_avg, exp_avg_sq, s);
    param = fused(r, s.negative_step_size, param);
  }
};

// The LAMB update, in the form that kernels/element/updates.h defines.
struct LambUpdate {
  using Rule = Lamb;
  using Scalars = LambElement::Scalars;
  using Decayed = LambElement;
  using Undecayed = LambElement;
  static constexpr int kMoments = 2;

  FSDP_ELEMENT static bool reads_moments(const Scalars& /*scalars*/) { return true; }
  FSDP_ELEMENT static float decay(double /*lr*/, double weight_decay) {
    return static_cast<float>(weight_decay);
  }
  FSDP_ELEMENT static Scalars host_scalars(const Lamb& rule) {
    return {.grad_scale = 1.0F,
            .decay = 0.0F,
            .beta1 = static_cast<float>(rule.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - rule.beta1),
            .beta2 = static_cast<float>(rule.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - rule.beta2),
            .correction1 = 1.0F,
            .inverse_root2 = 1.0F,
            .eps = static_cast<float>(rule.eps),
            .negative_step_size = 0.0F};
  }
  FSDP_ELEMENT static void read_scalars(Scalars& scalars, double lr, const StepCount* step) {
    scalars.correction1 = static_cast<float>(step->inverse_correction1);
    scalars.inverse_root2 = static_cast<float>(1.0 / step->root_correction2);
    scalars.negative_step_size = static_cast<float>(-lr);
  }
  FSDP_ELEMENT static void read_trust_ratio(Scalars& scalars, double lr, float ratio) {
    scalars.negative_step_size = static_cast<float>(-lr * ratio);
  }
};

inline std::variant<LambUpdate> update_of(const Lamb& /*rule*/) { return {}; }

}  // namespace fsdp::kernels
