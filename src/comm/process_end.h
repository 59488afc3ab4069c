// How a process ended, in words.
#pragma once

#include <string>

namespace fsdp {

// `wait_status` as waitpid gives it: "rank 2 was killed by signal 9 (SIGKILL)", "rank 2 ended with
// code 3", "rank 2 left early with code 0".
std::string describe_end(int rank, int wait_status);

}  // namespace fsdp
