// Checks of the options that AdamW shares with the optimizers that were derived from it.
#pragma once

#include <string_view>

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

}  // namespace fsdp
