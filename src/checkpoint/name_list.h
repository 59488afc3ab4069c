// Formats lists of a file's names for errors and notes.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

// Returns "'a', 'b' and 12 more".
std::string list_of(std::span<const std::string> names);
// Returns "1 tensor", "20 tensors".
std::string counted(std::span<const std::string> names, std::string_view what);

}  // namespace fsdp
