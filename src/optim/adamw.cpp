#include "optim/adam_options.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

// AdamW's options and update rule. The base class keeps moments, counters and groups.
struct AdamWState final : Optimizer::State {
  AdamWState(Engine& owner, AdamWOptions from)
      : State(owner, "AdamW", settings_of(from, /*moments=*/2)), options(std::move(from)) {}

  // OneCycleLR cycles beta1, as PyTorch's OneCycleLR does for Adam.
  double* momentum() override { return &options.beta1; }

  std::vector<std::string_view> moment_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::map<std::string, double> option_values() const override {
    return {{"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.eps},
            {"weight_decay", weight_decay},
            {"bias_correction", options.bias_correction ? 1 : 0}};
  }
  kernels::StepBetas betas() const override {
    return {.beta1 = options.beta1, .beta2 = options.beta2};
  }

  kernels::UpdateRule rule() const override {
    return kernels::AdamW{.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps};
  }
  // Without bias corrections, no value of the update depends on the step number.
  bool reads_steps() const override { return options.bias_correction; }

  AdamWOptions options;
};

}  // namespace

AdamW::AdamW(Engine& engine, AdamWOptions options)
    : Optimizer(std::make_unique<AdamWState>(engine, checked_adam("AdamW", std::move(options)))) {}

}  // namespace fsdp
