// Parses the command line. Flags have the names of Hugging Face's run_qa.py where it has them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/settings.h"

namespace bert_qa {

// The result of parsing.
struct CommandLine {
  Settings settings;
  std::string help;  // if not empty: print it, do nothing else
  // A line for each flag with its values, as given; must be equal on all ranks.
  std::vector<std::string> words;
};

// Parses the command line. Underscores in flag names count as hyphens.
// Errors: InvalidArgument kUsage.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace bert_qa
