#include "optim/adam_options.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

// Lion's options and update rule.
struct LionState final : Optimizer::State {
  LionState(Engine& owner, LionOptions from)
      : State(owner, "Lion", settings_of(from, /*moments=*/1)), options(std::move(from)) {}

  double* momentum() override { return &options.beta1; }
  std::vector<std::string_view> moment_names() const override { return {"exp_avg"}; }
  std::map<std::string, double> option_values() const override {
    return {{"beta1", options.beta1}, {"beta2", options.beta2}, {"weight_decay", weight_decay}};
  }
  kernels::UpdateRule rule() const override {
    return kernels::Lion{.beta1 = options.beta1, .beta2 = options.beta2};
  }
  bool reads_steps() const override { return false; }

  LionOptions options;
};

}  // namespace

Lion::Lion(Engine& engine, LionOptions options)
    : Optimizer(std::make_unique<LionState>(engine, checked_adam("Lion", std::move(options)))) {}

}  // namespace fsdp
