// Implements the arithmetic of kernels/trust_ratios.h.
#pragma once

#include <variant>

#include "kernels/element/block_index.h"
#include "kernels/element/lamb.h"
#include "kernels/element/sgd.h"
#include "kernels/trust_ratios.h"

namespace fsdp::kernels {

// The terms of an element: the values whose squares are added.
struct LambTerms {
  using Update = LambUpdate;
  FSDP_ELEMENT static float of_update(float param, float grad, float exp_avg, float exp_avg_sq,
                                      const LambElement::Scalars& s) {
    return LambElement::direction(param, grad, exp_avg, exp_avg_sq, s);
  }
};
struct SgdTerms {
  using Update = SgdUpdate<Momentum::kNone>;  // no moment is read
  FSDP_ELEMENT static float of_update(float /*param*/, float grad, float /*none*/, float /*none*/,
                                      const SgdScalars& s) {
    return grad * s.grad_scale;
  }
};
inline LambTerms terms_of(const Lamb& /*rule*/) { return {}; }
inline SgdTerms terms_of(const Sgd& /*rule*/) { return {}; }

// True for rules with a trust ratio.
template <class Rule>
inline constexpr bool kHasTerms = requires(const Rule& rule) {
  terms_of(rule);
};

FSDP_ELEMENT SquareSums joined(const SquareSums& left, const SquareSums& right) {
  return {left.param + right.param, left.update + right.update};
}

// Makes the joins of a parameter and returns its ratio.
FSDP_ELEMENT float trust_ratio_of(const TrustParameter& parameter, SquareSums* sums,
                                  const TrustFormula& formula) {
  for (int32_t i = 0; i < parameter.join_count; ++i) {
    const NodeJoin join = parameter.joins[i];
    sums[join.into] = joined(sums[join.into], sums[join.from]);
  }
  const double param = root(sums[parameter.root].param);
  const double update = root(sums[parameter.root].update);
  if (!(param > 0 && update > 0)) return 1.0F;
  return static_cast<float>(formula.coefficient * param /
                            (update + parameter.weight_decay * param + formula.eps));
}

}  // namespace fsdp::kernels
