#include "run/unknown_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "fsdp/program_text.h"
#include "run/other_names.h"

namespace fsdp {
namespace {

// A group of unknown flags with the same hint.
struct Refused {
  std::vector<std::string> names;  // as they were typed
  std::string hint;                // may be empty
};

// Returns true if the word begins with a hyphen and is not a negative number.
bool is_flag(std::string_view word) {
  return word.starts_with('-') &&
         (word.size() == 1 || std::isdigit(static_cast<unsigned char>(word[1])) == 0);
}

// Returns the hint for an unknown flag: the program's own answer, the flag's name in this program,
// or the most similar name. Empty if there is none.
std::string hint_for(const std::string& name, const KnownFlags& known) {
  if (const auto own = known.answers.find(name); own != known.answers.end()) return own->second;
  std::string hint = other_name_hint(name, known.names);
  if (!hint.empty()) return hint;
  if (name == "--help")
    return "print RunOptions::help_text for --help: a program with its own flags must do so";
  const std::string nearest = nearest_of(name, known.names);
  return nearest.empty() ? "" : fmt::format("did you mean {}?", nearest);
}

// Returns the names of the flags among `words`, each once. The other words are their values.
std::vector<std::string> names_of(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_new = std::ranges::find(names, name) == names.end();
    if (is_flag(word) && is_new) names.push_back(name);
  }
  return names;
}

// Groups flags by hint, so that the error for a copied command line with many foreign flags shows
// each hint once.
std::vector<Refused> refused_flags(const std::vector<std::string>& names, const KnownFlags& known) {
  std::vector<Refused> flags;
  for (const std::string& name : names) {
    std::string hint = hint_for(with_hyphens(name), known);
    const auto same = std::ranges::find(flags, hint, &Refused::hint);
    if (same == flags.end()) {
      flags.push_back({.names = {name}, .hint = std::move(hint)});
    } else {
      same->names.push_back(name);
    }
  }
  return flags;
}

[[noreturn]] void refuse(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .hint = std::move(hint)}, ExitCode::kUsage);
}

void append(std::string& hint, std::string_view more) {
  if (!hint.empty()) hint += hint.ends_with('?') ? " " : "; ";
  hint += more;
}

}  // namespace

std::string with_hyphens(std::string_view flag) {
  std::string name(flag);
  std::ranges::replace(name, '_', '-');
  return name;
}

void refuse_unknown(const std::vector<std::string>& words, const KnownFlags& known) {
  // A word that is no flag could be the value of the flag before it, but the first word cannot.
  if (!is_flag(words.front())) {
    refuse(fmt::format("expected a flag, got '{}'", words.front()), known.usage);
  }
  const std::vector<std::string> names = names_of(words);
  // If only one flag is unknown, its hint needs no flag name before it.
  const bool is_one = names.size() == 1;
  std::string hint;
  for (const Refused& flag : refused_flags(names, known)) {
    if (flag.hint.empty()) continue;
    append(hint,
           is_one ? flag.hint : fmt::format("{}: {}", fmt::join(flag.names, ", "), flag.hint));
  }
  append(hint, known.usage);
  refuse(fmt::format("there {} {}", is_one ? "is no flag" : "are no flags", fmt::join(names, ", ")),
         hint);
}

}  // namespace fsdp
