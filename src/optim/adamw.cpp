#include <fmt/format.h>

#include "fsdp/error.h"
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

AdamWOptions checked(AdamWOptions options) {
  const auto require = [](bool holds, std::string_view name, double value) {
    if (holds) return;
    throw InvalidArgument(
        {.what = fmt::format("AdamW: {} is {}", name, value),
         .hint = "set lr, eps and weight_decay to 0 or more, betas within [0, 1)"});
  };
  require(options.lr >= 0, "lr", options.lr);
  require(options.eps >= 0, "eps", options.eps);
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay);
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1);
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2);
  return options;
}

}  // namespace

AdamW::AdamW(Engine& engine, AdamWOptions options)
    : Optimizer(std::make_unique<AdamWState>(engine, checked(std::move(options)))) {}

}  // namespace fsdp
