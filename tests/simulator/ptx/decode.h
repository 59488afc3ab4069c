// Decodes one PTX statement.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/ptx/program.h"

namespace fsdp::testing::ptx {

// The names that a statement can use in its scope.
struct Names {
  std::function<std::optional<int>(std::string_view)> register_of;
  std::function<std::optional<Variable>(std::string_view)> variable_of;
};

std::optional<Type> type_of(std::string_view word);
// Returns the parts between separators that are outside of brackets. Surrounding white space is
// removed.
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trimmed(std::string_view text);

// Decodes `statement`, which has no semicolon. Stores the target of a branch in `label`.
Instruction decode(std::string_view statement, int line, const Names& names, std::string& label);

}  // namespace fsdp::testing::ptx
