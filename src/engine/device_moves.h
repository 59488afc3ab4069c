// Moves a model from the CPU, on which it was built, to the device on which its mesh computes.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "engine/module_walk.h"
#include "shard/shard_context.h"

namespace fsdp {

// Moves the parameters of the unit that is sharded next, so that the device never holds more than
// one whole unit. Skips parameters that are on the device already.
// Errors: InvalidArgument if a parameter is neither on the CPU nor on the device.
void move_parameters(const std::vector<FoundParameter>& parameters, const ShardContext& context);

// Moves buffers, and parameters that belong to no unit (Options::ignore). Errors: those of
// move_parameters.
void move_rest(torch::nn::Module& root, const ShardContext& context);

}  // namespace fsdp
