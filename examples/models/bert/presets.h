// Defines model sizes by name, for random initialisation.
#pragma once

#include <string>

#include "models/bert/config.h"

namespace bert {

// Returns "tiny, mini, small, …, 3.9b".
std::string preset_names();
// Returns the configuration of a preset. Heads have 64 features. 0.8b, 1.3b and 3.9b are pre-LN
// (megatron-bert).
// Errors: InvalidArgument kUsage, which names the choices.
Config preset_config(const std::string& name);

}  // namespace bert
