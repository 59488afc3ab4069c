// Implements the arithmetic of kernels/sgd.h.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/element/element.h"
#include "kernels/update.h"

namespace fsdp::kernels {

enum class Momentum : uint8_t { kNone, kPlain, kNesterov };

// The scalars that all elements of a segment share. Each is rounded once from float64.
struct SgdScalars {
  float grad_scale, decay, trust_ratio, momentum, one_minus_dampening, negative_lr;
  bool first;  // true if this update initialises the momentum buffer
};

// The update of one element. kDecay is a template parameter, because a decay of 0 would not be
// neutral: 0 · inf is NaN.
template <bool kDecay, Momentum kMomentum>
struct SgdElement {
  // Updates one element. If there is no momentum, `buffer` is neither read nor written.
  FSDP_ELEMENT static void update(float& param, float grad, float& buffer, float& /*none*/,
                                  const SgdScalars& s) {
    float d = grad * s.grad_scale;
    if constexpr (kDecay) d = fused(param, s.decay, d);
    d = d * s.trust_ratio;
    if constexpr (kMomentum != Momentum::kNone) {
      // The value is selected without a branch, so that the loop over elements vectorises.
      const float moved = fused(d, s.one_minus_dampening, buffer * s.momentum);
      buffer = s.first ? d : moved;
      d = kMomentum == Momentum::kNesterov ? fused(buffer, s.momentum, d) : buffer;
    }
    param = fused(d, s.negative_lr, param);
  }
};

// The SGD update, in the form that kernels/element/updates.h defines.
template <Momentum kMomentum>
struct SgdUpdate {
  using Rule = Sgd;
  using Scalars = SgdScalars;
  using Decayed = SgdElement<true, kMomentum>;
  using Undecayed = SgdElement<false, kMomentum>;
  static constexpr int kMoments = kMomentum == Momentum::kNone ? 0 : 1;

  FSDP_ELEMENT static bool reads_moments(const Scalars& scalars) { return !scalars.first; }
  FSDP_ELEMENT static float decay(double /*lr*/, double weight_decay) {
    return static_cast<float>(weight_decay);
  }
  FSDP_ELEMENT static Scalars host_scalars(const Sgd& rule) {
    return {.grad_scale = 1.0F,
            .decay = 0.0F,
            .trust_ratio = 1.0F,
            .momentum = static_cast<float>(rule.momentum),
            .one_minus_dampening = static_cast<float>(1.0 - rule.dampening),
            .negative_lr = 0.0F,
            .first = false};
  }
  FSDP_ELEMENT static void read_scalars(Scalars& scalars, double lr, const StepCount* step) {
    scalars.negative_lr = static_cast<float>(-lr);
    scalars.first = step != nullptr && step->step == 1;
  }
  FSDP_ELEMENT static void read_trust_ratio(Scalars& scalars, double /*lr*/, float ratio) {
    scalars.trust_ratio = ratio;
  }
};

// Returns the update for the rule's options.
inline std::variant<SgdUpdate<Momentum::kNone>, SgdUpdate<Momentum::kPlain>,
                    SgdUpdate<Momentum::kNesterov>>
update_of(const Sgd& rule) {
  if (rule.momentum == 0) return SgdUpdate<Momentum::kNone>();
  if (rule.nesterov) return SgdUpdate<Momentum::kNesterov>();
  return SgdUpdate<Momentum::kPlain>();
}

}  // namespace fsdp::kernels
