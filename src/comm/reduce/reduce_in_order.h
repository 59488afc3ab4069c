// Reductions that the CPU performs over the inputs of all ranks. Large reductions bypass the
// caches.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/reduce.h"

namespace fsdp {

// Reduces `sources` into `out`. kernels::ReduceRun defines the result. kAvg needs a floating type.
void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op);

}  // namespace fsdp
