// Implements the arithmetic of kernels/lion.h.
#pragma once

#include <variant>

#include "kernels/element/element.h"
#include "kernels/update.h"

namespace fsdp::kernels {

// The update of one element.
struct LionElement {
  // The scalars that all elements of a segment share. Each is rounded once from float64.
  struct Scalars {
    float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, negative_lr;
  };

  // Updates one element. A decay or scale of 1 changes no bit, so one function handles the cases
  // with and without them.
  FSDP_ELEMENT static void update(float& param, float grad, float& exp_avg, float& /*none*/,
                                  const Scalars& s) {
    const float g = grad * s.grad_scale;
    const float direction = fused(g, s.one_minus_beta1, exp_avg * s.beta1);
    exp_avg = fused(g, s.one_minus_beta2, exp_avg * s.beta2);
    // Selected without a branch, so that the loop vectorises. A NaN is in neither of the two
    // comparisons, so it reaches the sum below, as a zero does.
    float step = direction;
    step = direction > 0.0F ? s.negative_lr : step;
    step = direction < 0.0F ? -s.negative_lr : step;
    param = param * s.decay + step;
  }
};

// The Lion update, in the form that kernels/element/updates.h defines.
struct LionUpdate {
  using Rule = Lion;
  using Scalars = LionElement::Scalars;
  using Decayed = LionElement;
  using Undecayed = LionElement;
  static constexpr int kMoments = 1;

  FSDP_ELEMENT static bool reads_moments(const Scalars& /*scalars*/) { return true; }
  FSDP_ELEMENT static float decay(double lr, double weight_decay) {
    return static_cast<float>(1.0 - lr * weight_decay);
  }
  FSDP_ELEMENT static Scalars host_scalars(const Lion& rule) {
    return {.grad_scale = 1.0F,
            .decay = 1.0F,
            .beta1 = static_cast<float>(rule.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - rule.beta1),
            .beta2 = static_cast<float>(rule.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - rule.beta2),
            .negative_lr = 0.0F};
  }
  FSDP_ELEMENT static void read_scalars(Scalars& scalars, double lr, const StepCount* /*step*/) {
    scalars.negative_lr = static_cast<float>(-lr);
  }
};

inline std::variant<LionUpdate> update_of(const Lion& /*rule*/) { return {}; }

}  // namespace fsdp::kernels
