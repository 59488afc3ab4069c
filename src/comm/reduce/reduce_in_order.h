// Reductions that the CPU performs over the inputs of all ranks. Large reductions bypass the
// caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/reduce.h"

namespace fsdp {

// Reduces `sources` into `out`. kernels::ReduceRun defines the result. kAvg needs a floating type.
// It divides the sum by `ranks` or, if `ranks` is 0, by the number of sources. `ranks` is given if
// a source is the sum of several ranks.
void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op, size_t ranks = 0);

}  // namespace fsdp
