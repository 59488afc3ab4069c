// A model's buffers: describes them for the handshake and makes them equal on all ranks.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "shard/shard_context.h"

namespace fsdp {

// Appends a line a buffer that must be equal on all ranks. Sparse and quantised buffers cannot be
// broadcast, so their lines end with a digest of their content.
// Errors: InvalidArgument for a buffer of a layout whose content cannot be compared.
void describe_buffers(torch::nn::Module& root, std::vector<std::string>& lines);

// Broadcasts rank 0's dense buffers. Collective.
void broadcast_buffers(torch::nn::Module& root, ShardContext& context);

// Replaces floating buffers by their mean over the ranks, and other dense ones by rank 0's.
// Collective.
void average_buffers(torch::nn::Module& root, ShardContext& context);

}  // namespace fsdp
