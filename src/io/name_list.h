// Formats lists of a file's names for errors and notes.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

// Returns the first names and the number of the others, such as "'a', 'b' and 12 more".
std::string list_of(std::span<const std::string> names);
// Returns the number of names with a noun, such as "1 tensor" or "20 tensors".
std::string counted(std::span<const std::string> names, std::string_view what);

}  // namespace fsdp
