// The host's reduction of one run, for who has no stream: communicators of the CPU reduce piece by
// piece, between meetings of the ranks.
#pragma once

#include "kernels/reduce.h"

namespace fsdp::kernels::cpu {

// As kernels::reduce, at once and unchecked.
void reduce_run(const ReduceRun& run, ReduceOp op);

}  // namespace fsdp::kernels::cpu
