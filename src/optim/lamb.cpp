#include "optim/adam_options.h"

namespace fsdp {
namespace {

// LAMB's options and update rule.
struct LambState final : AdamState<LambOptions> {
  LambState(Engine& owner, LambOptions from)
      : AdamState(owner, "Lamb", std::move(from), /*adapts=*/true) {}

  std::map<std::string, double> option_values() const override {
    std::map<std::string, double> values = AdamState::option_values();
    values["always_adapt"] = options.always_adapt ? 1 : 0;
    return values;
  }
  kernels::UpdateRule rule() const override {
    return kernels::Lamb{.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps};
  }
  TrustRule trust_rule() const override { return {.always_adapt = options.always_adapt}; }
};

}  // namespace

Lamb::Lamb(Engine& engine, LambOptions options)
    : Optimizer(std::make_unique<LambState>(engine, checked_adam("Lamb", std::move(options)))) {}

}  // namespace fsdp
