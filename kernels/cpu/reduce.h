// Declares the CPU reduction of one run, for callers without a stream: the CPU communicators reduce
// a collective in pieces, between barriers of the ranks.
#pragma once

#include <cstddef>

#include "kernels/reduce.h"

namespace fsdp::kernels::cpu {

// Does the same as kernels::reduce, but immediately and without checks. kAvg divides the sum by
// `ranks`. This number is larger than run.sources.size() if a source is the sum of several ranks.
void reduce_run(const ReduceRun& run, ReduceOp op, size_t ranks);
inline void reduce_run(const ReduceRun& run, ReduceOp op) {
  reduce_run(run, op, run.sources.size());
}

}  // namespace fsdp::kernels::cpu
