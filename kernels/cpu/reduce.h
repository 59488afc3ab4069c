// Declares the host's reduction of one run, for callers without a stream: communicators of the CPU
// reduce piece by piece, between barriers of the ranks.
#pragma once

#include "kernels/reduce.h"

namespace fsdp::kernels::cpu {

// Reduces as kernels::reduce, but immediately and without checks.
void reduce_run(const ReduceRun& run, ReduceOp op);

}  // namespace fsdp::kernels::cpu
