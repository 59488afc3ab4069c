// What --help of a program is made of.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Lines of at most `columns` characters, broken between words, and within those that no line could
// hold. At least one line.
std::vector<std::string> wrapped(std::string_view text, size_t columns);

// "  --prefetch N                  units gathered ahead [1]\n": a flag and what it means, on lines
// of at most 80 columns.
std::string help_row(std::string_view flag, std::string_view meaning);

// The last lines: what a program's exit codes are.
std::string_view exit_codes_help();

}  // namespace fsdp
