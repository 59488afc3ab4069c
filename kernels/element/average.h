// Implements the arithmetic of kernels/average.h.
#pragma once

#include <variant>

#include "kernels/element/element.h"
#include "kernels/update.h"

namespace fsdp::kernels {

// The update of one element.
struct AverageElement {
  // The scalars that all elements of a segment share.
  struct Scalars {
    double most_decay;
    float grad_scale, decay, weight;  // only `weight` is used: 1 - d
    bool warmup;
  };

  FSDP_ELEMENT static void update(float& average, float weight, float& /*none*/, float& /*none*/,
                                  const Scalars& s) {
    average = fused(weight - average, s.weight, average);
  }
};

// The update of an average, in the form that kernels/element/updates.h defines.
struct AverageUpdate {
  using Rule = Average;
  using Scalars = AverageElement::Scalars;
  using Decayed = AverageElement;
  using Undecayed = AverageElement;
  static constexpr int kMoments = 0;

  FSDP_ELEMENT static bool reads_moments(const Scalars& /*scalars*/) { return false; }
  FSDP_ELEMENT static float decay(double /*lr*/, double /*weight_decay*/) { return 0.0F; }
  FSDP_ELEMENT static Scalars host_scalars(const Average& rule) {
    return {.most_decay = rule.decay,
            .grad_scale = 1.0F,
            .decay = 0.0F,
            .weight = 0.0F,
            .warmup = rule.warmup};
  }
  FSDP_ELEMENT static void read_scalars(Scalars& scalars, double /*lr*/, const StepCount* step) {
    const auto earlier = static_cast<double>(step->step - 1);
    const double rising = (1.0 + earlier) / (10.0 + earlier);
    const bool rises = scalars.warmup && rising < scalars.most_decay;
    scalars.weight = static_cast<float>(1.0 - (rises ? rising : scalars.most_decay));
  }
};

inline std::variant<AverageUpdate> update_of(const Average& /*rule*/) { return {}; }

}  // namespace fsdp::kernels
