// Finds what else holds the memory of parameters that are about to be sharded.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "engine/module_walk.h"

namespace fsdp {

// [Note: holders of old storage]
// Sharding gives a parameter other storage and keeps its tensor: modules, ties and optimizers hold
// the tensor and follow. What holds the storage does not: a view, detach(), or buffer made before
// would keep the first weights for good, in silence. So nothing may share a parameter's storage
// but parameters registered in `module`, and the tensors that those are views of if only they hold
// them. Errors: InvalidArgument naming the parameter, and the holder if it is registered.
void check_holders(torch::nn::Module& module, const std::vector<FoundParameter>& parameters);

}  // namespace fsdp
