// Which word somebody may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Of `names` the one that is nearest to what was typed; empty if none is near.
std::string nearest_of(std::string_view typed, const std::vector<std::string>& names);

}  // namespace fsdp
