// How a gradient's elements lie, against its parameter's memory order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "plan/shard_layout.h"

namespace fsdp {

// True if element i in the parameter's memory order is element i in the gradient's.
bool lies_like(const at::Tensor& gradient, const ParameterSpec& spec);

// Dimensions from the slowest to the fastest in the parameter's memory.
std::vector<int64_t> memory_order(const ParameterSpec& spec);

}  // namespace fsdp
