// The conditions of a run on which the exact bits of its steps depend.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_parts.h"

namespace fsdp {

// Returns the conditions by name: "strategy", "mesh", "param_dtype", "offload", "libtorch",
// "threads per rank", "cpu capability", "device".
std::map<std::string, std::string> training_conditions(const EngineParts& engine);

// Returns one line for each condition that differs from that of the checkpoint.
std::vector<std::string> differences(const std::map<std::string, std::string>& now,
                                     const std::map<std::string, std::string>& saved);

}  // namespace fsdp
