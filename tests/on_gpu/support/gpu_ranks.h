// Thread ranks on the GPU of these tests: this machine's, or a simulated one, on which the same
// tests run without a GPU (tests/on_gpu/simulated).
#pragma once

#include "support/run_ranks.h"

namespace fsdp::testing {

// Returns ranks for run_ranks. If the process sees one real GPU, all ranks share it; if it sees
// more, each has its own, with NCCL between them.
RunRanksOptions ranks_on_gpu();

bool gpu_is_simulated();

}  // namespace fsdp::testing
