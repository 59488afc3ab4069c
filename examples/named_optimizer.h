// Makes the optimizer that a program's flag --optim names. The names are those of Hugging Face's
// Trainer, where it has the optimizer.
#pragma once

#include <fsdp/error.h>
#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct OptimizerName {
  std::string_view name;
  std::string_view title;
  fsdp::OptimizerKind kind;  // in plans
  bool has_betas;            // false: it takes neither betas nor eps
};
inline constexpr std::array kOptimizerNames{
    OptimizerName{"adamw_torch", "AdamW", fsdp::OptimizerKind::kAdamW, true},
    OptimizerName{"sgd", "SGD", fsdp::OptimizerKind::kSgd, false},
    OptimizerName{"lion_32bit", "Lion", fsdp::OptimizerKind::kSgdMomentum, true},
    OptimizerName{"radam", "RAdam", fsdp::OptimizerKind::kAdamW, true},
    OptimizerName{"lamb", "LAMB", fsdp::OptimizerKind::kLamb, true},
    OptimizerName{"lars", "LARS", fsdp::OptimizerKind::kLars, false},
    OptimizerName{"adamw_8bit", "AdamW in 8 bits", fsdp::OptimizerKind::kAdamW8bit, true}};

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
  const bool is_8bit = optimizer_named(name).kind == fsdp::OptimizerKind::kAdamW8bit;
  if (is_8bit) options.shard_granule = fsdp::AdamW8bit::kBlockNumel;
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
