// The models that can be planned by name: presets of the examples' models, and Hugging Face folders
// by their shapes.
#pragma once

#include <fsdp/options.h>
#include <fsdp/plan.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace planning {

// Of one rank and step.
struct BatchShape {
  int64_t sequences = 1;
  int64_t length = 384;  // tokens
};

struct KnownModel {
  std::string name;         // as it was asked for
  std::string description;  // "llama: 80 layers, hidden 8192, 64 heads, vocabulary 32000"
  int64_t longest = 0;      // sequence that it takes
  std::function<fsdp::UnitOptions(std::string_view fqn)> unit_options;  // empty: none
  std::function<std::unique_ptr<fsdp::Planner>(const BatchShape& batch)> planner;
};

// "bert-tiny", …, "gpt2", …, "llama-70b"
std::vector<std::string> preset_names();

// Errors: InvalidArgument kUsage for a name that is neither, with the nearest one; of a folder's
//   config.json as bert_qa::parse_model_config, and InvalidArgument for a model_type that is not
//   known, with those that are.
KnownModel find_model(const std::string& preset_or_folder);

}  // namespace planning
