// Thread ranks on the GPU of these tests: this machine's, or a simulated one where the same tests
// are run without (tests/on_gpu/simulated).
#pragma once

#include "support/run_ranks.h"

namespace fsdp::testing {

// Of a real GPU all ranks share the first one that the process sees, where it sees no more than
// one; else each has its own, and NCCL is between them.
RunRanksOptions ranks_on_gpu();

bool gpu_is_simulated();

}  // namespace fsdp::testing
