// Finds other holders of the memory of parameters that are about to be sharded.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "engine/module_walk.h"

namespace fsdp {

// [Note: holders of old storage]
// Sharding gives a parameter other storage and keeps its tensor. Modules, ties and optimizers hold
// the tensor and follow. A view, detach() or buffer made before holds the old storage, and would
// keep the first weights for good, in silence.
//
// Throws InvalidArgument that names the parameter if anything else holds its storage, with the
// holder's name if it is registered. Allowed are parameters registered in `module`, and tensors
// that these are views of, if nothing else holds those.
void check_holders(torch::nn::Module& module, const std::vector<FoundParameter>& parameters);

}  // namespace fsdp
