// Finds models to plan. A name is a preset of the examples' models or a Hugging Face folder, of
// which only the shapes are read.
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

// The batch of one rank in one step.
struct BatchShape {
  int64_t sequences = 1;
  int64_t length = 0;  // tokens; 0: the length of the model
};

// The usual training of a model. It supplies values that the command line does not set.
struct Usual {
  int64_t length = 0;  // tokens
  fsdp::DeviceKind device = fsdp::DeviceKind::kCpu;
  fsdp::MixedPrecision mixed_precision{};
};

// A model and the step to plan. The step is the forward of a batch of equal tokens, which returns
// the loss. Outside a plan the model can be trained.
struct BlankModel {
  std::shared_ptr<torch::nn::Module> root;
  std::function<at::Tensor()> loss;

  const std::shared_ptr<torch::nn::Module>& ptr() const { return root; }
};

// A model that can be planned.
struct KnownModel {
  std::string name;         // the name on the command line
  std::string description;  // "llama: 80 layers, hidden 8192, 64 heads, vocabulary 32000"
  int64_t longest = 0;      // longest sequence
  // The sum of the width of attention over all layers. For each pair of tokens, the score needs
  // this number of products, and the value needs the same number.
  int64_t attended_width = 0;
  bool counts_samples = false;  // true: the cost of a run counts sequences instead of tokens
  Usual usual;
  std::function<fsdp::UnitOptions(std::string_view fqn)> unit_options;  // empty: none
  std::function<BlankModel(const BatchShape& batch)> build;
};

std::unique_ptr<fsdp::Planner> planner_of(const KnownModel& model, const BatchShape& batch);

// Returns "bert-tiny", …, "gpt2", …, "llama-70b".
std::vector<std::string> preset_names();

// Returns the model of a preset or a folder.
// Errors: InvalidArgument kUsage if the name is not known; the error suggests the nearest name. For
//   the config.json of a folder, the errors of bert_qa::parse_model_config. InvalidArgument if the
//   model_type is not known; the error names the known types.
KnownModel find_model(const std::string& preset_or_folder);

}  // namespace planning
