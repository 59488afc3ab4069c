// Prepares the words of a command line for the parser.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace bert_qa {

// Returns the words without the program's name, with hyphens instead of underscores in flag names.
// Errors: InvalidArgument kUsage if a word is empty.
std::vector<std::string> command_words(int argc, const char* const* argv);

// Makes the parser refuse a flag where the value of the previous flag is expected.
void refuse_flags_as_values(CLI::App& app);

}  // namespace bert_qa
