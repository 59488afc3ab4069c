// The command line: flags named as in Hugging Face's run_qa.py where it has them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/settings.h"

namespace bert_qa {

struct CommandLine {
  Settings settings;
  std::string help;  // if not empty: print it, do nothing else
  // As given, a line a flag with its values: the ranks' must be equal.
  std::vector<std::string> words;
};

// Underscores in flag names count as hyphens.
// Errors: InvalidArgument kUsage.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace bert_qa
