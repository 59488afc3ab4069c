// Flags that a program does not have, refused together.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The program that was asked.
struct KnownFlags {
  std::vector<std::string> names;
  std::map<std::string, std::string> answers = {};  // of its own, to flags that others have
  std::string usage = "--help lists the flags";
};

// Throws InvalidArgument (64) that names each flag of `words`, in order, with its hint; or the
// first word, if it stands where a flag is expected. A flag may have its value behind '=', and
// underscores. A word that follows a flag and is none is its value.
// Requires: a word.
[[noreturn]] void refuse_unknown(const std::vector<std::string>& words, const KnownFlags& known);

// "--param_dtype" is "--param-dtype".
std::string with_hyphens(std::string_view flag);

}  // namespace fsdp
