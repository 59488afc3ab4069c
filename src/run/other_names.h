// What other programs call a flag: those of Hugging Face, torchrun, and ours among each other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// How what `typed` asks for elsewhere is asked for here, by a program whose flags are `names`:
// "--batch", "--param-dtype bfloat16". Empty if nobody knows.
std::string name_here(std::string_view typed, const std::vector<std::string>& names);

}  // namespace fsdp
