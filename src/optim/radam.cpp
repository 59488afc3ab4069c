#include "optim/adam_options.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

// RAdam's options and update rule.
struct RAdamState final : Optimizer::State {
  RAdamState(Engine& owner, RAdamOptions from)
      : State(owner, "RAdam", settings_of(from, /*moments=*/2)), options(std::move(from)) {}

  double* momentum() override { return &options.beta1; }
  std::vector<std::string_view> moment_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::map<std::string, double> option_values() const override {
    return {{"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.eps},
            {"weight_decay", weight_decay},
            {"decoupled_weight_decay", options.decoupled_weight_decay ? 1 : 0}};
  }
  kernels::StepBetas betas() const override {
    return {.beta1 = options.beta1, .beta2 = options.beta2};
  }
  kernels::UpdateRule rule() const override {
    return kernels::RAdam{.beta1 = options.beta1,
                          .beta2 = options.beta2,
                          .eps = options.eps,
                          .decoupled_weight_decay = options.decoupled_weight_decay};
  }

  RAdamOptions options;
};

}  // namespace

RAdam::RAdam(Engine& engine, RAdamOptions options)
    : Optimizer(std::make_unique<RAdamState>(engine, checked_adam("RAdam", std::move(options)))) {}

}  // namespace fsdp
