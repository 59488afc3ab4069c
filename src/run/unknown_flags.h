// Refuses all flags that a program does not have, in one error.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The flags of the program that refuses unknown flags.
struct KnownFlags {
  std::vector<std::string> names;
  std::map<std::string, std::string> answers = {};  // the program's own hints for flags of others
  std::string usage = "--help lists the flags";
};

// Throws InvalidArgument (64) that names each flag of `words`, in order, with its hint. If the
// first word is not a flag, the error names only this word. A flag may contain underscores, and a
// value after '='. If a word that is no flag follows a flag, it is the flag's value.
// Requires: `words` is not empty.
[[noreturn]] void refuse_unknown(const std::vector<std::string>& words, const KnownFlags& known);

// Returns the flag with hyphens in place of underscores: "--param_dtype" becomes "--param-dtype".
std::string with_hyphens(std::string_view flag);

}  // namespace fsdp
