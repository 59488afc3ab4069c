// The loopback on ranks that are processes, as runs are.
#pragma once

#include <string>
#include <vector>

#include "fsdp/error.h"

namespace fsdp::doctor {

// Turns this program into a rank of the loopback. Not listed by --help.
inline constexpr const char* kRankFlag = "--loopback-rank";

// Starts this program again as `ranks` processes, by the fsdp-run beside it, and waits for them. If
// this process ends first, they are killed.
// Errors: DeviceError with what the first rank to fail says.
void run_loopback_processes(int ranks);

// What a rank of run_loopback_processes does. Errors: as Mesh::from_env, and of the loopback.
void run_loopback_rank();

// The words of a command that ended with `status`, as waitpid gives it, from what it printed: the
// first line of an error, cut into its text and hint.
ErrorText failure_of(const std::string& printed, int status);

// Runs a command and returns what it printed on stdout and stderr.
// Errors: DeviceError if it cannot be started or fails, with its words.
std::string output_of(const std::vector<std::string>& command);

}  // namespace fsdp::doctor
