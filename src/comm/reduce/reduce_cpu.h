// Reductions over ranks' contributions on the CPU: the one place where they are summed, so that all
// communicators give the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

// out[i] = sources[0][i] ∘ sources[1][i] ∘ … in this order. float32, bfloat16 and float16 are
// accumulated in fp32 and rounded once (to nearest, ties to even), the others in their own type
// (unsigned bytes wrap). kAvg divides the sum by sources.size(). kMax of floating types is NaN if
// any contribution is.
// Requires: elements aligned to their size; `out` is one of the sources exactly, or overlaps none.
//   kAvg needs a floating type.
void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op);

}  // namespace fsdp
