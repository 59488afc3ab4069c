// A model that was built on the CPU goes to the device that its mesh computes on.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "engine/module_walk.h"
#include "shard/shard_context.h"

namespace fsdp {

// Of a unit that is sharded next, so that no more than one unit lies there whole. Nothing happens
// where it is there already. Errors: InvalidArgument if a parameter is on a third device.
void move_parameters(const std::vector<FoundParameter>& parameters, const ShardContext& context);

// Buffers, and parameters that no unit takes (Options::ignore). Errors: as above.
void move_rest(torch::nn::Module& root, const ShardContext& context);

}  // namespace fsdp
