// Finds models to plan by name: presets of the examples' models, and Hugging Face folders by their
// shapes.
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

// The batch of one rank and step.
struct BatchShape {
  int64_t sequences = 1;
  int64_t length = 0;  // tokens; 0: the model's own
};

// The usual training of a model, for values that the command line lacks.
struct Usual {
  int64_t length = 0;  // tokens
  fsdp::DeviceKind device = fsdp::DeviceKind::kCpu;
  fsdp::MixedPrecision mixed_precision{};
};

// A model and the step to plan: the forward of a batch of equal tokens, which returns the loss.
// Outside of a plan it is a model that can train.
struct BlankModel {
  std::shared_ptr<torch::nn::Module> root;
  std::function<at::Tensor()> loss;

  const std::shared_ptr<torch::nn::Module>& ptr() const { return root; }
};

// A model that can be planned.
struct KnownModel {
  std::string name;         // as given on the command line
  std::string description;  // "llama: 80 layers, hidden 8192, 64 heads, vocabulary 32000"
  int64_t longest = 0;      // longest sequence
  // Sum over layers of the width of attention. Each pair of tokens needs this number of products
  // for its score, and again for its value.
  int64_t attended_width = 0;
  Usual usual;
  std::function<fsdp::UnitOptions(std::string_view fqn)> unit_options;  // empty: none
  std::function<BlankModel(const BatchShape& batch)> build;
};

std::unique_ptr<fsdp::Planner> planner_of(const KnownModel& model, const BatchShape& batch);

// Returns "bert-tiny", …, "gpt2", …, "llama-70b".
std::vector<std::string> preset_names();

// Returns the model of a preset or a folder.
// Errors: InvalidArgument kUsage for another name, with the nearest one; for a folder's config.json
//   as bert_qa::parse_model_config, and InvalidArgument for an unknown model_type, with the known
//   ones.
KnownModel find_model(const std::string& preset_or_folder);

}  // namespace planning
