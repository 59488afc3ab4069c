// Reductions over ranks' contributions on the CPU, past the caches where they are large.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/reduce.h"

namespace fsdp {

// As kernels::ReduceRun has it. Requires: kAvg of floating types alone.
void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op);

}  // namespace fsdp
