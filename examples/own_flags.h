// Reads a program's own flags from RunOptions::other_arguments.
//
//   OwnFlags flags(run);
//   flags.read("--seed", seed, "a whole number");
//   const std::string help = flags.finish({});  // not empty: print it and do nothing else
#pragma once

#include <fsdp/error.h>
#include <fsdp/run_options.h>

#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

[[noreturn]] inline void refuse(fsdp::ExitCode code, const std::string& what,
                                const std::string& hint) {
  throw fsdp::Error(code, {.what = what, .hint = hint});
}

class OwnFlags {
 public:
  // Requires: `run` outlives this object.
  explicit OwnFlags(const fsdp::RunOptions& run) : run_(run) {
    const std::vector<std::string>& words = run.other_arguments;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& flag = words[i];
      const bool has_value = i + 1 < words.size() && !words[i + 1].starts_with("--");
      given_[flag] = has_value ? words[++i] : "";  // the last one of a flag counts
    }
  }

  // Sets `value` if the flag was given. `value` is a text, or a number from `least` to `most`.
  // Errors: fsdp::Error (64) for a value that is not allowed; the hint is to pass `meaning`.
  template <class Value>
  void read(const std::string& flag, Value& value, const std::string& meaning, double least = 0,
            double most = 1e9) {
    help_ << "  " << flag << "\n    " << meaning << " [" << value << "]\n";
    flags_.push_back(flag);
    if (!given_.contains(flag)) return;
    std::istringstream text(given_.extract(flag).mapped());
    if constexpr (std::is_same_v<Value, std::string>) {
      std::getline(text, value, '\0');
    } else if (text >> value && (!text.eof() || value < least || value > most)) {
      text.setstate(std::ios::failbit);
    }
    if (!text)
      refuse(fsdp::ExitCode::kUsage, flag + " cannot be '" + text.str() + "'", "pass " + meaning);
  }

  // Returns the text for --help, which lists the engine's flags too, if --help was given.
  // Errors: InvalidArgument (64) that names the given flags that were not read.
  std::string finish(fsdp::ProgramFlags program) {
    const bool asks_for_help = given_.erase("--help") > 0;
    std::vector<std::string> unknown;
    for (const auto& [flag, value] : given_) unknown.push_back(flag);
    if (!unknown.empty()) run_.refuse(unknown, flags_);
    return asks_for_help ? help_.str() + run_.help_text(program) : "";
  }

 private:
  const fsdp::RunOptions& run_;
  std::map<std::string, std::string> given_;
  std::vector<std::string> flags_;
  std::ostringstream help_;
};
