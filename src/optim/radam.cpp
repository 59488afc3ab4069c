#include "optim/adam_options.h"

namespace fsdp {
namespace {

// RAdam's options and update rule.
struct RAdamState final : AdamState<RAdamOptions> {
  RAdamState(Engine& owner, RAdamOptions from) : AdamState(owner, "RAdam", std::move(from)) {}

  std::map<std::string, double> option_values() const override {
    std::map<std::string, double> values = AdamState::option_values();
    values["decoupled_weight_decay"] = options.decoupled_weight_decay ? 1 : 0;
    return values;
  }
  kernels::UpdateRule rule() const override {
    return kernels::RAdam{.beta1 = options.beta1,
                          .beta2 = options.beta2,
                          .eps = options.eps,
                          .decoupled_weight_decay = options.decoupled_weight_decay};
  }
};

}  // namespace

RAdam::RAdam(Engine& engine, RAdamOptions options)
    : Optimizer(std::make_unique<RAdamState>(engine, checked_adam("RAdam", std::move(options)))) {}

}  // namespace fsdp
