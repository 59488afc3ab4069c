// Runs the loopback on ranks that are processes, as in a run.
#pragma once

#include <string>
#include <vector>

#include "fsdp/error.h"

namespace fsdp::doctor {

// The flag that makes this program a rank of the loopback. --help does not list it.
inline constexpr const char* kRankFlag = "--loopback-rank";

// Starts `ranks` processes of this program and waits for them. The launcher is the fsdp-run in the
// same folder. If this process ends first, the kernel kills the processes of the ranks.
// Errors: DeviceError with the text of the first rank that fails.
void run_loopback_processes(int ranks);

// Runs one rank of run_loopback_processes. Errors: as Mesh::from_env and run_loopback.
void run_loopback_rank();

// Returns the failure of a command from its output: the first error line, split into text and hint.
// If there is no error line, describes `status`, which is the status of waitpid.
ErrorText failure_of(const std::string& printed, int status);

// Runs a command and returns its output on stdout and stderr.
// Errors: DeviceError if the command cannot be started or fails. If it fails, failure_of(output,
//   status) is the text of the error.
std::string output_of(const std::vector<std::string>& command);

}  // namespace fsdp::doctor
