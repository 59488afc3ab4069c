// Names of a file, as errors and notes list them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

// "'a', 'b' and 12 more"
std::string list_of(std::span<const std::string> names);
// "1 tensor", "20 tensors"
std::string counted(std::span<const std::string> names, std::string_view what);

}  // namespace fsdp
