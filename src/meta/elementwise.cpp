// Implements operators on meta tensors whose result has the broadcast shape of the arguments.
#include <ATen/TensorIterator.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "meta/meta_kernels.h"

namespace fsdp {
namespace {

// Runs an operator that returns one tensor in the common type of its arguments. The result is a new
// tensor, the first argument (in place), or the given `out`. The schema decides which one.
void elementwise(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  const auto arguments = torch::jit::last(*stack, schema.size());
  at::TensorIteratorConfig config;
  config.promote_inputs_to_common_dtype(true).set_check_mem_overlap(false);
  at::Tensor in_place, out;
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < schema.size(); ++i) {
    if (!arguments[i].isTensor()) continue;
    const bool is_written = schema[i].alias_info() != nullptr && schema[i].alias_info()->isWrite();
    if (is_written) (schema[i].is_out() ? out : in_place) = arguments[i].toTensor();
    if (!schema[i].is_out()) inputs.push_back(arguments[i].toTensor());
  }
  config.add_output(in_place);  // undefined: the iterator allocates the output
  for (const at::Tensor& input : inputs) config.add_const_input(input);
  at::TensorIterator iterator = config.build();
  at::Tensor result = iterator.output();
  if (out.defined()) {
    meta::become(out, result);
    result = out;
  }
  torch::jit::drop(*stack, schema.size());
  torch::jit::push(*stack, std::move(result));
}

std::tuple<at::Tensor, at::Tensor> prelu_backward(const at::Tensor& /*gradient*/,
                                                  const at::Tensor& self,
                                                  const at::Tensor& /*weight*/) {
  at::Tensor of_self = at::empty_like(self);
  return {std::move(of_self), at::empty_like(self)};
}

at::Tensor glu_backward(const at::Tensor& /*gradient*/, const at::Tensor& self, int64_t /*dim*/) {
  return at::empty(self.sizes(), self.options());
}

// Returns the result and a buffer. Only the CPU kernel has this buffer. The buffer keeps exp(-|x|)
// for backward.
std::tuple<at::Tensor, at::Tensor> log_sigmoid_forward(const at::Tensor& self) {
  at::Tensor result = at::empty_like(self);
  return {std::move(result), at::empty_like(self, at::MemoryFormat::Contiguous)};
}

at::Tensor log_sigmoid_backward(const at::Tensor& gradient, const at::Tensor& /*self*/,
                                const at::Tensor& /*buffer*/) {
  return at::empty_like(gradient);
}

}  // namespace

void add_elementwise(MetaKernels& kernels) {
  for (const char* name :
       {"relu", "relu_", "hardtanh", "hardtanh_", "hardtanh_backward", "hardswish", "hardswish_",
        "hardswish_backward", "_prelu_kernel", "nan_to_num", "nan_to_num_", "nan_to_num.out",
        "abs.out", "mse_loss_backward"}) {
    kernels.add(name, torch::CppFunction::makeFromBoxedFunction<&elementwise>());
  }
  kernels.add("_prelu_kernel_backward", prelu_backward);
  kernels.add("glu_backward", glu_backward);
  kernels.add("log_sigmoid_forward", log_sigmoid_forward);
  kernels.add("log_sigmoid_backward", log_sigmoid_backward);
}

}  // namespace fsdp
