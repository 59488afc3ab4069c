// Thread ranks on the GPU of these tests. It is this machine's GPU, or a simulated one
// (tests/on_gpu/simulated) on which the same tests run without a GPU.
#pragma once

#include "support/run_ranks.h"

namespace fsdp::testing {

// Returns ranks for run_ranks. If the process sees one real GPU, all ranks share it. If it sees
// several, each rank has its own GPU, and NCCL connects the ranks.
RunRanksOptions ranks_on_gpu();

bool gpu_is_simulated();

}  // namespace fsdp::testing
