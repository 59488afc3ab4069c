// The words of a command line, and how the parser is to take them.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace bert_qa {

// Without the program's name, flags with hyphens.
// Errors: InvalidArgument kUsage: one is empty.
std::vector<std::string> command_words(int argc, const char* const* argv);

// Makes the parser refuse a flag that stands where the value of the one before it is expected.
void refuse_flags_as_values(CLI::App& app);

}  // namespace bert_qa
