// Refuses flags that a program does not have, all in one error.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The flags of the program that refuses.
struct KnownFlags {
  std::vector<std::string> names;
  std::map<std::string, std::string> answers = {};  // the program's own hints for flags of others
  std::string usage = "--help lists the flags";
};

// Throws InvalidArgument (64) that names each flag of `words`, in order, with its hint; or the
// first word if that is no flag. A flag may contain underscores and a value after '='. A word that
// follows a flag and is none is its value.
// Requires: at least one word.
[[noreturn]] void refuse_unknown(const std::vector<std::string>& words, const KnownFlags& known);

// Returns the flag with hyphens: "--param_dtype" becomes "--param-dtype".
std::string with_hyphens(std::string_view flag);

}  // namespace fsdp
