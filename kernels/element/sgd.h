// The arithmetic of kernels/sgd.h.
#pragma once

#include "kernels/element/element.h"
#include "kernels/sgd.h"

namespace fsdp::kernels {

enum class Momentum : uint8_t { kNone, kPlain, kNesterov };

inline Momentum momentum_of(const SgdOptions& options) {
  if (options.momentum == 0) return Momentum::kNone;
  return options.nesterov ? Momentum::kNesterov : Momentum::kPlain;
}

// What all elements of a segment have in common, each rounded once from float64.
struct SgdScalars {
  float grad_scale, weight_decay, momentum, one_minus_dampening, negative_lr;
  bool first;  // this update starts the momentum buffer
};

// What the host knows of them; the rest is in device memory.
FSDP_ELEMENT SgdScalars host_scalars(double lr, double weight_decay, const SgdOptions& options) {
  return {.grad_scale = 1.0F,
          .weight_decay = static_cast<float>(weight_decay),
          .momentum = static_cast<float>(options.momentum),
          .one_minus_dampening = static_cast<float>(1.0 - options.dampening),
          .negative_lr = static_cast<float>(-lr),
          .first = false};
}

FSDP_ELEMENT void read_scalars(SgdScalars& scalars, const StepCount* step,
                               const float* grad_scale) {
  if (grad_scale != nullptr) scalars.grad_scale = *grad_scale;
  scalars.first = step != nullptr && step->step == 1;
}

// `buffer` is neither read nor written without momentum. Decay is a parameter of its own and not a
// decay of 0, since 0 · inf is NaN.
template <bool kDecay, Momentum kMomentum>
FSDP_ELEMENT void sgd_element(float& param, float grad, float& buffer, const SgdScalars& s) {
  float d = grad * s.grad_scale;
  if constexpr (kDecay) d = fused(param, s.weight_decay, d);
  if constexpr (kMomentum != Momentum::kNone) {
    const float moved = fused(d, s.one_minus_dampening, buffer * s.momentum);
    buffer = s.first ? d : moved;
    d = kMomentum == Momentum::kNesterov ? fused(buffer, s.momentum, d) : buffer;
  }
  param = fused(d, s.negative_lr, param);
}

}  // namespace fsdp::kernels
