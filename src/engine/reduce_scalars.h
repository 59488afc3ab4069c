// Reduces scalars of main state over all ranks.
#pragma once

#include <string_view>

#include "comm/communicator.h"
#include "shard/shard_context.h"

namespace fsdp {

// Reduces float64 scalars that kernels on MainPlace::stream() compute, and that later kernels on
// this stream read. `what` names the collective in errors. Collective.
void reduce_scalars(ShardContext& context, const CollectivePart& part, ReduceOp op,
                    std::string_view what);

}  // namespace fsdp
