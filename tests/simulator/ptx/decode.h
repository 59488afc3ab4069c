// One PTX statement, decoded.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/ptx/program.h"

namespace fsdp::testing::ptx {

// What the names in a statement stand for, in the scope in which it stands.
struct Names {
  std::function<std::optional<int>(std::string_view)> register_of;
  std::function<std::optional<Variable>(std::string_view)> variable_of;
};

std::optional<Type> type_of(std::string_view word);
// Cut at the separator outside of brackets; without white space around.
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trimmed(std::string_view text);

// `statement` without its semicolon. Of a branch the target is left in `label`.
// Errors: Objection.
Instruction decode(std::string_view statement, int line, const Names& names, std::string& label);

}  // namespace fsdp::testing::ptx
