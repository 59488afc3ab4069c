// Returns the command line that continues a run.
#pragma once

#include <string>

namespace fsdp {

// Returns the command by which the user started this job, with --resume auto at its end: that of
// fsdp-run, or of this process if it has no launcher. Returns an empty text under other launchers,
// and if the system does not tell the command.
std::string resume_command();

}  // namespace fsdp
