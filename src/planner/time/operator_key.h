// Names the calls of an operator that take the same time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace fsdp {

// Returns a text that is equal for two calls if their operator, the shapes, strides and types of
// their tensors, and their integers are equal, and if both or none of them record a graph for
// autograd: "aten::mm(Float[128,768] Float[768,64;1,768]) grad". Strides follow only if a tensor
// is not contiguous. Values of other arguments (floating-point numbers, devices) are left out.
// Requires: the stack ends with the arguments.
std::string operator_key(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Returns true if a call with these arguments records a graph for autograd.
bool records_graph(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace fsdp
