#include "optim/adam_options.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

// LAMB's options and update rule.
struct LambState final : Optimizer::State {
  LambState(Engine& owner, LambOptions from)
      : State(owner, "Lamb", settings_of(from, /*moments=*/2, /*adapts=*/true)),
        options(std::move(from)) {}

  double* momentum() override { return &options.beta1; }
  std::vector<std::string_view> moment_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::map<std::string, double> option_values() const override {
    return {{"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.eps},
            {"weight_decay", weight_decay},
            {"always_adapt", options.always_adapt ? 1 : 0}};
  }
  kernels::StepBetas betas() const override {
    return {.beta1 = options.beta1, .beta2 = options.beta2};
  }
  kernels::UpdateRule rule() const override {
    return kernels::Lamb{.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps};
  }
  TrustRule trust_rule() const override { return {.always_adapt = options.always_adapt}; }

  LambOptions options;
};

}  // namespace

Lamb::Lamb(Engine& engine, LambOptions options)
    : Optimizer(std::make_unique<LambState>(engine, checked_adam("Lamb", std::move(options)))) {}

}  // namespace fsdp
