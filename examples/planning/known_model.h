// The models that can be planned, and built, by name: presets of the examples' models, and Hugging
// Face folders by their shapes.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/plan.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace planning {

// Of one rank and step.
struct BatchShape {
  int64_t sequences = 1;
  int64_t length = 0;  // tokens; 0: the model's own
};

// How such a model is trained where nothing else is asked for.
struct Usual {
  int64_t length = 0;  // tokens
  fsdp::DeviceKind device = fsdp::DeviceKind::kCpu;
  fsdp::MixedPrecision mixed_precision{};
};

// A model, and the step that it is planned for: the forward of a batch of one token alone, which
// returns the loss. With LibTorch's factories as they are it is one that can train.
struct BlankModel {
  std::shared_ptr<torch::nn::Module> root;
  std::function<at::Tensor()> loss;

  const std::shared_ptr<torch::nn::Module>& ptr() const { return root; }
};

struct KnownModel {
  std::string name;         // as it was asked for
  std::string description;  // "llama: 80 layers, hidden 8192, 64 heads, vocabulary 32000"
  int64_t longest = 0;      // sequence that it takes
  // Of all layers the widths in which their heads attend: with each pair of tokens as many products
  // of two numbers for its score, and for its value.
  int64_t attended_width = 0;
  Usual usual;
  std::function<fsdp::UnitOptions(std::string_view fqn)> unit_options;  // empty: none
  std::function<BlankModel(const BatchShape& batch)> build;
};

std::unique_ptr<fsdp::Planner> planner_of(const KnownModel& model, const BatchShape& batch);

// "bert-tiny", …, "gpt2", …, "llama-70b"
std::vector<std::string> preset_names();

// Errors: InvalidArgument kUsage for a name that is neither, with the nearest one; of a folder's
//   config.json as bert_qa::parse_model_config, and InvalidArgument for a model_type that is not
//   known, with those that are.
KnownModel find_model(const std::string& preset_or_folder);

}  // namespace planning
