// Model sizes by name, for random initialisation.
#pragma once

#include <string>

#include "data/model_config.h"

namespace bert_qa {

// "tiny, mini, small, …, 3.9b"
std::string preset_names();
// Heads of 64 features; 1.3b and 3.9b have their norms first (megatron-bert).
// Errors: InvalidArgument kUsage naming the choices.
fsdp::ModelConfig preset_config(const std::string& name);

}  // namespace bert_qa
