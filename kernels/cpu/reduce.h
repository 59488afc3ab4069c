// Declares the CPU reduction of one run, for callers without a stream: the CPU communicators reduce
// a collective in pieces, between barriers of the ranks.
#pragma once

#include "kernels/reduce.h"

namespace fsdp::kernels::cpu {

// Does the same as kernels::reduce, but immediately and without checks.
void reduce_run(const ReduceRun& run, ReduceOp op);

}  // namespace fsdp::kernels::cpu
