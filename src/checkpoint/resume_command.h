// Returns the command line that continues a run.
#pragma once

#include <string>
#include <vector>

namespace fsdp {

// Returns the words as a command for a shell. Words with other characters than letters, digits and
// -_./=:,+@% are in single quotes.
std::string shell_command(const std::vector<std::string>& words);

// Returns the command by which the user started this job, with --resume auto at its end: that of
// fsdp-run, or of this process if it has no launcher. Returns an empty text under other launchers,
// and if the system does not tell the command.
std::string resume_command();

}  // namespace fsdp
