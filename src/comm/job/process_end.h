// How a process ended, in words.
#pragma once

#include <string>

namespace fsdp {

// `wait_status` as waitpid gives it: "rank 2 was killed by signal 9 (SIGKILL)", "rank 2 ended with
// code 3", "rank 2 left early with code 0".
std::string describe_end(int rank, int wait_status);

// What to do about it: restarting helps after a signal from outside or an early end, not after a
// fault of the program or a code that says that the command line, a file or the configuration is
// wrong, and not where memory was short. `out_of_memory`: the kernel killed it to free memory.
// `is_shown`: the error that it ended by stands above.
std::string hint_for_end(int rank, int wait_status, bool out_of_memory, bool is_shown = false);

}  // namespace fsdp
