// Buffers of a model: described for the handshake, made equal on all ranks.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "shard/shard_context.h"

namespace fsdp {

// Appends a line a buffer, of what must be equal on all ranks; sparse and quantised buffers, which
// cannot be broadcast, with a digest of their content. Errors: InvalidArgument for buffers that are
// not on the CPU, or of a layout that cannot be looked into.
void describe_buffers(torch::nn::Module& root, std::vector<std::string>& lines);

// Rank 0's values on every rank. Collective.
void broadcast_buffers(torch::nn::Module& root, ShardContext& context);

// Floating buffers become the mean over the ranks, others rank 0's. Collective.
void average_buffers(torch::nn::Module& root, ShardContext& context);

}  // namespace fsdp
