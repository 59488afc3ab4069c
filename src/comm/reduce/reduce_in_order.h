// Reductions of ranks' contributions on the CPU; large ones bypass the caches.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/reduce.h"

namespace fsdp {

// Reduces `sources` into `out` as kernels::ReduceRun says. Requires: kAvg for floating types only.
void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op);

}  // namespace fsdp
