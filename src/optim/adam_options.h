// The parts that AdamW shares with the optimizers that were derived from it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/optimizer_state.h"
#include "optim/scheduler_checks.h"

namespace fsdp {

// Returns the options. Throws InvalidArgument "AdamW: lr is -1; hint: …" if an option is invalid.
template <class Options>
Options checked_adam(std::string_view optimizer, Options options) {
  const auto require = [&](bool holds, std::string_view name, double value) {
    require_option(holds, optimizer, name, value,
                   "set lr, eps and weight_decay to 0 or more, betas within [0, 1)");
  };
  require(options.lr >= 0, "lr", options.lr);
  if constexpr (requires { options.eps; }) require(options.eps >= 0, "eps", options.eps);
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay);
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1);
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2);
  return options;
}

// The state of an optimizer with AdamW's two moments. A subclass adds the update rule and the
// options that AdamW does not have.
template <class Options>
struct AdamState : Optimizer::State {
  AdamState(Engine& owner, std::string name, Options from, bool adapts = false,
            bool quantizes = false)
      : State(owner, std::move(name), settings_of(from, /*moments=*/2, adapts, quantizes)),
        options(std::move(from)) {}

  // OneCycleLR cycles beta1, as PyTorch's OneCycleLR does for Adam.
  double* momentum() override { return &options.beta1; }
  std::vector<std::string_view> moment_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::map<std::string, double> option_values() const override {
    return {{"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.eps},
            {"weight_decay", weight_decay}};
  }
  kernels::StepBetas betas() const override {
    return {.beta1 = options.beta1, .beta2 = options.beta2};
  }

  Options options;
};

}  // namespace fsdp
