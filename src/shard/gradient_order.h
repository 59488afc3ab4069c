// Compares the memory order of a gradient with that of its parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "plan/shard_layout.h"

namespace fsdp {

// Returns true if the gradient stores its elements in the same memory order as the parameter.
bool lies_like(const at::Tensor& gradient, const ParameterSpec& spec);

// Returns the dimensions from the slowest to the fastest in the parameter's memory.
std::vector<int64_t> memory_order(const ParameterSpec& spec);

}  // namespace fsdp
