// Messages about the end of a process.
#pragma once

#include <string>

namespace fsdp {

// Returns true if the process was ended by a signal that is caused by a fault of the program
// itself, such as SIGSEGV, and not by a signal that was sent from outside.
bool is_fault_of_program(int wait_status);

// Returns true for exit codes after which a restart ends in the same way, because the command line,
// a file, the program or the configuration must change first.
bool needs_change(int code);

// Describes a wait status of waitpid: "rank 2 was killed by signal 9 (SIGKILL)", "rank 2 ended with
// code 3", "rank 2 left early with code 0".
std::string describe_end(int rank, int wait_status);

// Returns a hint. After a signal from outside or an early end, the hint recommends a restart. After
// a fault of the program, after a code for a wrong command line, file or configuration, or if
// memory was short, the hint says that a restart alone is likely to end the same way.
// `out_of_memory` is true if the kernel killed the rank to free memory. `is_shown` is true if the
// rank's error is printed above the hint.
std::string hint_for_end(int rank, int wait_status, bool out_of_memory, bool is_shown = false);

}  // namespace fsdp
