// Formats the text of bert_qa --help and bert_qa COMMAND --help.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace bert_qa {

// Returns all flags of `app` by group with their defaults, the commands of `app` and the exit
// codes.
std::string help_of(const CLI::App& app);

}  // namespace bert_qa
