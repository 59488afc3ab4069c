// Maps flags of other programs (Hugging Face's scripts, torchrun, other programs of this project)
// to the flags of this program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Returns a hint for the flag `typed` of another program. `names` are the flags of this program.
// The hint has the name of the flag here ("here it is --param-dtype bfloat16"), or advice if there
// is no such flag. Empty if `typed` is not known.
std::string other_name_hint(std::string_view typed, const std::vector<std::string>& names);

}  // namespace fsdp
