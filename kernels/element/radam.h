// Implements the arithmetic of kernels/radam.h.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/element/element.h"
#include "kernels/update.h"

namespace fsdp::kernels {

enum class RAdamDecay : uint8_t { kNone, kOfGradient, kDecoupled };

// The scalars that all elements of a segment share. Each is rounded once from float64.
struct RAdamScalars {
  float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, negative_step_size;
  bool rectified;  // true if the variance is tractable
};

// The update of one element. kDecay is a template parameter, because a decay of 0 would not be
// neutral: 0 · inf is NaN.
template <RAdamDecay kDecay>
struct RAdamElement {
  FSDP_ELEMENT static void update(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                  const RAdamScalars& s) {
    float g = grad * s.grad_scale;
    if constexpr (kDecay == RAdamDecay::kOfGradient) g = fused(param, s.decay, g);
    exp_avg = fused(g, s.one_minus_beta1, exp_avg * s.beta1);
    exp_avg_sq = fused(s.one_minus_beta2 * g, g, exp_avg_sq * s.beta2);
    // The value is selected without a branch, so that the loop over elements vectorises.
    const float adaptive = root(exp_avg_sq) + s.eps;
    const float denominator = s.rectified ? adaptive : 1.0F;
    const float kept = kDecay == RAdamDecay::kDecoupled ? param * s.decay : param;
    param = kept + (s.negative_step_size * exp_avg) / denominator;
  }
};

// The RAdam update, in the form that kernels/element/updates.h defines.
template <bool kDecoupled>
struct RAdamUpdate {
  using Rule = RAdam;
  using Scalars = RAdamScalars;
  using Decayed = RAdamElement<kDecoupled ? RAdamDecay::kDecoupled : RAdamDecay::kOfGradient>;
  using Undecayed = RAdamElement<kDecoupled ? RAdamDecay::kDecoupled : RAdamDecay::kNone>;
  static constexpr int kMoments = 2;

  FSDP_ELEMENT static bool reads_moments(const Scalars& /*scalars*/) { return true; }
  FSDP_ELEMENT static float decay(double lr, double weight_decay) {
    return static_cast<float>(kDecoupled ? 1.0 - lr * weight_decay : weight_decay);
  }
  FSDP_ELEMENT static Scalars host_scalars(const RAdam& rule) {
    return {.grad_scale = 1.0F,
            .decay = 0.0F,
            .beta1 = static_cast<float>(rule.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - rule.beta1),
            .beta2 = static_cast<float>(rule.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - rule.beta2),
            .eps = static_cast<float>(rule.eps),
            .negative_step_size = 0.0F,
            .rectified = false};
  }
  FSDP_ELEMENT static void read_scalars(Scalars& scalars, double lr, const StepCount* step) {
    scalars.rectified = step->rectification != 0;
    const double rectification = scalars.rectified ? step->rectification : 1.0;
    scalars.negative_step_size =
        static_cast<float>(-lr * step->inverse_correction1 * rectification);
  }
};

// Returns the update for the rule's options.
inline std::variant<RAdamUpdate<false>, RAdamUpdate<true>> update_of(const RAdam& rule) {
  if (rule.decoupled_weight_decay) return RAdamUpdate<true>();
  return RAdamUpdate<false>();
}

}  // namespace fsdp::kernels
