// Which word somebody may have meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Of `names` the one that is nearest to what was typed; empty if none is near.
std::string nearest_of(std::string_view typed, const std::vector<std::string>& names);

// Levenshtein's: how many letters have to be put in, taken out or exchanged.
size_t edit_distance(std::string_view from, std::string_view to);

}  // namespace fsdp
