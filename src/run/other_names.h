// Finds the names that flags of other programs (Hugging Face's scripts, torchrun, other programs of
// this project) have here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Returns the hint of a program with the flags `names` for the flag `typed` of another program: its
// name here ("here it is --param-dtype bfloat16"), or advice if it has none. Empty if the flag is
// not known.
std::string other_name_hint(std::string_view typed, const std::vector<std::string>& names);

}  // namespace fsdp
