// Names that flags have elsewhere: in Hugging Face's scripts, in torchrun, in other programs here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Returns what a program whose flags are `names` says to the flag `typed` of another program: its
// name here ("here it is --param-dtype bfloat16"), or what to do as there is none. Empty if the
// flag is not known.
std::string other_name_hint(std::string_view typed, const std::vector<std::string>& names);

}  // namespace fsdp
