// Decodes one PTX statement.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/ptx/program.h"

namespace fsdp::testing::ptx {

// Looks up the names in a statement, in its scope.
struct Names {
  std::function<std::optional<int>(std::string_view)> register_of;
  std::function<std::optional<Variable>(std::string_view)> variable_of;
};

std::optional<Type> type_of(std::string_view word);
// Returns the parts between separators outside of brackets, without surrounding white space.
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trimmed(std::string_view text);

// `statement` without its semicolon. Of a branch the target is left in `label`.
// Decodes `statement`, without its semicolon. Stores the target of a branch in `label`.
Instruction decode(std::string_view statement, int line, const Names& names, std::string& label);

}  // namespace fsdp::testing::ptx
