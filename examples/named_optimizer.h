// Makes the optimizer that a program's flag --optim names. The names are those of Hugging Face's
// Trainer, where it has the optimizer.
#pragma once

#include <fsdp/error.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct OptimizerName {
  std::string_view name;
  int moments;           // PlanRequest::optimizer_moments
  bool has_betas;        // false: it takes neither betas nor eps
  bool is_8bit = false;  // PlanRequest::quantized_moments
};
inline constexpr std::array kOptimizerNames{OptimizerName{"adamw_torch", 2, true},
                                            OptimizerName{"sgd", 0, false},
                                            OptimizerName{"lion_32bit", 1, true},
                                            OptimizerName{"radam", 2, true},
                                            OptimizerName{"lamb", 2, true},
                                            OptimizerName{"lars", 1, false},
                                            OptimizerName{"adamw_8bit", 2, true, true}};

// Returns "adamw_torch, sgd, …".
inline std::string optimizer_names() {
  std::string names;
  for (const OptimizerName& each : kOptimizerNames) {
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  return names;
}

// Errors: InvalidArgument (64) for an unknown name.
inline const OptimizerName& optimizer_named(std::string_view name) {
  const auto* const found = std::ranges::find(kOptimizerNames, name, &OptimizerName::name);
  if (found != kOptimizerNames.end()) return *found;
  throw fsdp::InvalidArgument({.what = "--optim cannot be '" + std::string(name) + "'",
                               .hint = "pass one of " + optimizer_names()},
                              fsdp::ExitCode::kUsage);
}

// Sets the engine's options that the optimizer needs. Call it before the engine is made.
inline void prepare_engine(std::string_view name, fsdp::Options& options) {
  if (optimizer_named(name).is_8bit) options.shard_granule = fsdp::AdamW8bit::kBlockNumel;
}

// Options that all programs set. A value that is unset is the optimizer's default.
struct NamedOptimizer {
  double lr = 1e-3;
  double weight_decay = 0;  // not of biases and norms
  std::optional<double> beta1{}, beta2{}, eps{};
  bool bias_correction = true;  // false is possible for adamw_torch only
};

inline std::unique_ptr<fsdp::Optimizer> make_optimizer(fsdp::Engine& engine, std::string_view name,
                                                       const NamedOptimizer& from) {
  const auto with = [&](auto options) {
    options.lr = from.lr;
    options.weight_decay = from.weight_decay;
    // An update in backward cannot skip a step.
    options.skip_nonfinite = !engine.options().optimizer_in_backward;
    options.groups = {{.match = fsdp::is_bias_or_norm, .weight_decay = 0.0}};
    if constexpr (requires { options.beta1; }) {
      options.beta1 = from.beta1.value_or(options.beta1);
      options.beta2 = from.beta2.value_or(options.beta2);
    }
    if constexpr (requires {
                    options.beta1;
                    options.eps;
                  }) {
      options.eps = from.eps.value_or(options.eps);
    }
    if constexpr (requires { options.bias_correction; }) {
      options.bias_correction = from.bias_correction;
    }
    return options;
  };
  const std::string_view known = optimizer_named(name).name;
  if (known == "sgd") return std::make_unique<fsdp::SGD>(engine, with(fsdp::SgdOptions{}));
  if (known == "radam") return std::make_unique<fsdp::RAdam>(engine, with(fsdp::RAdamOptions{}));
  if (known == "lamb") return std::make_unique<fsdp::Lamb>(engine, with(fsdp::LambOptions{}));
  if (known == "lars") return std::make_unique<fsdp::Lars>(engine, with(fsdp::LarsOptions{}));
  if (known == "lion_32bit") return std::make_unique<fsdp::Lion>(engine, with(fsdp::LionOptions{}));
  if (known == "adamw_8bit") {
    return std::make_unique<fsdp::AdamW8bit>(engine, with(fsdp::AdamW8bitOptions{}));
  }
  return std::make_unique<fsdp::AdamW>(engine, with(fsdp::AdamWOptions{}));
}
