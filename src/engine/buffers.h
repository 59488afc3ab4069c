// Describes a model's buffers for the handshake, and makes buffers equal on all ranks.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "shard/shard_context.h"

namespace fsdp {

// Appends one line for each buffer that must be equal on all ranks. Sparse and quantised buffers
// cannot be broadcast, so their lines end with a digest of their content.
// Errors: InvalidArgument if a buffer has a layout whose content cannot be compared.
void describe_buffers(torch::nn::Module& root, std::vector<std::string>& lines);

// Broadcasts the dense buffers of rank 0 to all ranks. Collective.
void broadcast_buffers(torch::nn::Module& root, ShardContext& context);

// Replaces floating buffers by their mean over the ranks, and other dense buffers by rank 0's
// values. Collective.
void average_buffers(torch::nn::Module& root, ShardContext& context);

}  // namespace fsdp
