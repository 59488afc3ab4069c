// A training that is interrupted and continued by checkpoints. Its bits do not depend on the number
// of ranks.
#pragma once

#include <fsdp/checkpoint.h>
#include <fsdp/engine.h>
#include <fsdp/optim.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

// Returns gradients that are small integers and depend on the step only. Their sum and their mean
// over any number of ranks are exact, so the order of summation does not change a bit.
inline at::Tensor integers_like(const at::Tensor& parameter, int64_t step) {
  const at::Tensor places = at::arange(parameter.numel(), parameter.options().requires_grad(false));
  return at::remainder(places * 7 + step * 3, 9).sub_(4).reshape(parameter.sizes());
}

struct ExactPartImpl : torch::nn::Module {
  ExactPartImpl(int64_t rows, int64_t columns) {
    // The values are column-major in memory, as those of a transposed weight are.
    const at::Tensor values =
        at::arange(rows * columns, at::kFloat).sin_().reshape({rows, columns});
    weight =
        register_parameter("weight", at::empty_strided({rows, columns}, {1, rows}).copy_(values));
    bias = register_parameter("bias", at::arange(columns, at::kFloat).cos_());
  }
  at::Tensor forward(int64_t step) {
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& each : {weight, bias})
      loss = loss + (each * integers_like(each, step)).sum();
    return loss;
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(ExactPart);

// A model of three parts. The third part has `last` columns. `Part` is ExactPart or
// Unit<ExactPart>.
template <class Part>
struct ExactNetOf : torch::nn::Module {
  explicit ExactNetOf(int64_t last = 17) {
    for (const auto& [rows, columns] : {std::pair{5L, 7L}, {1L, 1L}, {33L, last}}) {
      parts.emplace_back(rows, columns);
      register_module("part" + std::to_string(parts.size() - 1), parts.back());
    }
    scale = register_parameter("scale", at::arange(3, at::kFloat));
  }
  at::Tensor forward(int64_t step) {
    at::Tensor loss = (scale * integers_like(scale, step)).sum();
    for (auto& part : parts) loss = loss + part(step);
    return loss;
  }
  std::vector<Part> parts;
  at::Tensor scale;
};
using ExactNetImpl = ExactNetOf<Unit<ExactPart>>;
TORCH_MODULE(ExactNet);
using PlainNetImpl = ExactNetOf<ExactPart>;
TORCH_MODULE(PlainNet);

// Runs the steps from `from` to `to` - 1. If `from` is not 0, loads the checkpoint of step `from`
// first. Saves checkpoints at the steps `saves_at` and `to` in `folder`. Their names contain the
// step and `tag`.
struct ExactTraining {
  std::filesystem::path folder;
  std::string optimizer = "adamw";  // a name that make_optimizer knows
  int64_t from = 0, saves_at = 3, to = 6;
  std::string tag;
  int64_t last = 17;
  bool by_policy = false;  // units are chosen by policy in a model without Unit
  Options options{};
};

inline std::filesystem::path weights_at(const ExactTraining& training, int64_t step,
                                        const std::string& tag = {}) {
  return training.folder / ("weights-" + std::to_string(step) + tag);
}
inline std::filesystem::path optimizer_at(const ExactTraining& training, int64_t step,
                                          const std::string& tag = {}) {
  return training.folder / ("optimizer-" + std::to_string(step) + tag);
}

// Returns the options that the engine needs for the optimizer.
inline Options options_for(const std::string& kind, Options options) {
  if (kind == "adamw_8bit") options.shard_granule = AdamW8bit::kBlockNumel;
  return options;
}
// Returns a count of columns with which ExactNet has a parameter that the optimizer quantizes, if
// it quantizes. The last block of this parameter is not full.
inline int64_t columns_for(const std::string& kind) { return kind == "adamw_8bit" ? 131 : 17; }

inline std::unique_ptr<Optimizer> make_optimizer(Engine& engine, const std::string& kind) {
  const std::vector<ParameterGroup> groups{{.match = is_bias_or_norm, .lr_scale = 0.5}};
  if (kind == "sgd") {
    return std::make_unique<SGD>(
        engine, SgdOptions{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .groups = groups});
  }
  if (kind == "radam") {
    return std::make_unique<RAdam>(
        engine, RAdamOptions{.lr = 1e-2, .beta2 = 0.5, .weight_decay = 0.1, .groups = groups});
  }
  if (kind == "lion") {
    return std::make_unique<Lion>(engine,
                                  LionOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
  }
  if (kind == "lamb") {
    return std::make_unique<Lamb>(engine,
                                  LambOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
  }
  if (kind == "adamw_8bit") {
    return std::make_unique<AdamW8bit>(
        engine, AdamW8bitOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
  }
  if (kind == "lars") {
    return std::make_unique<Lars>(engine,
                                  LarsOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
  }
  return std::make_unique<AdamW>(engine,
                                 AdamWOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
}

template <class Model>
void take_exact_step(Engine& engine, Model& model, Optimizer& optimizer, int64_t step) {
  if (step == 2) optimizer.set_lr(0.03);  // a run from step 3 must load this rate
  engine.forward([&](int64_t now) { return model(now); }, step).backward();
  optimizer.step();
  optimizer.zero_grad();
}

template <class Model>
void train_exactly(const Mesh& mesh, const ExactTraining& training, Model model) {
  Engine engine(model, mesh, options_for(training.optimizer, training.options));
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(engine, training.optimizer);
  if (training.from > 0) {
    load_weights(engine, weights_at(training, training.from));
    load_optimizer(*optimizer, optimizer_at(training, training.from));
  }
  for (int64_t step = training.from; step < training.to; ++step) {
    take_exact_step(engine, model, *optimizer, step);
    if (step + 1 != training.saves_at && step + 1 != training.to) continue;
    save_weights(engine, weights_at(training, step + 1, training.tag));
    save_optimizer(*optimizer, optimizer_at(training, step + 1, training.tag));
  }
}

inline void train_exactly(const Mesh& mesh, ExactTraining training) {
  if (!training.by_policy) return train_exactly(mesh, training, Unit<ExactNet>(training.last));
  training.options.units = by_type<ExactPart>();
  train_exactly(mesh, training, PlainNet(training.last));
}

}  // namespace fsdp::testing
