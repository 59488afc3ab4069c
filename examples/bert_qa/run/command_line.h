// Parses the command line. If run_qa.py of Hugging Face has the same flag, bert_qa uses its name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/settings.h"

namespace bert_qa {

// The parsed command line.
struct CommandLine {
  Settings settings;
  std::string help;  // if not empty, the program prints it and ends
  // One line for each flag, with the values that were given. All ranks must have the same lines.
  std::vector<std::string> words;
};

// Parses the command line. Underscores in flag names count as hyphens.
// Errors: InvalidArgument kUsage.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace bert_qa
