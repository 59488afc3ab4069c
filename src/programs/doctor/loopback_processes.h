// Runs the loopback on ranks that are processes, as in a run.
#pragma once

#include <string>
#include <vector>

#include "fsdp/error.h"

namespace fsdp::doctor {

// Flag that turns this program into a rank of the loopback. --help does not list it.
inline constexpr const char* kRankFlag = "--loopback-rank";

// Starts `ranks` processes of this program by the fsdp-run in the same folder and waits for them.
// If this process ends first, the kernel kills them.
// Errors: DeviceError with the text of the first rank to fail.
void run_loopback_processes(int ranks);

// Runs one rank of run_loopback_processes. Errors: as Mesh::from_env and run_loopback.
void run_loopback_rank();

// Returns the failure of a command from its output: the first error line, split into text and hint.
// Without such a line, describes `status`, which is waitpid's.
ErrorText failure_of(const std::string& printed, int status);

// Runs a command and returns its output on stdout and stderr.
// Errors: DeviceError if it cannot be started or fails, with failure_of its output.
std::string output_of(const std::vector<std::string>& command);

}  // namespace fsdp::doctor
