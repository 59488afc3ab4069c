// Finds other holders of the memory of parameters that will be sharded.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "engine/module_walk.h"

namespace fsdp {

// [Note: holders of old storage]
// Sharding keeps the parameter's tensor but replaces its storage. Modules, ties and optimizers hold
// the tensor, so they see the new storage. A view, detach() or buffer made before sharding holds
// the old storage, and would silently keep the first weights forever.
//
// Throws InvalidArgument that names the parameter if anything else holds its storage. If the holder
// is registered, the error names the holder too. Allowed holders are parameters registered in
// `module`. If such a parameter is a view, its base tensor is allowed too, unless something else
// holds this base tensor.
void check_holders(torch::nn::Module& module, const std::vector<FoundParameter>& parameters);

}  // namespace fsdp
