// Implements adaptive pooling on meta tensors.
#include <ATen/ops/empty.h>

#include "meta/meta_kernels.h"

namespace fsdp {
namespace {

// Returns a tensor with the shape of `self` in which `output_size` replaces the last dimensions.
at::Tensor adaptive_average(const at::Tensor& self, at::IntArrayRef output_size) {
  std::vector<int64_t> shape = self.sizes().vec();
  std::copy(output_size.rbegin(), output_size.rend(), shape.rbegin());
  return at::empty(shape, self.options().memory_format(self.suggest_memory_format()));
}

at::Tensor adaptive_average_backward(const at::Tensor& /*gradient*/, const at::Tensor& self) {
  return at::empty(self.sizes(), self.options().memory_format(self.suggest_memory_format()));
}

}  // namespace

void add_pooling(MetaKernels& kernels) {
  kernels.add("_adaptive_avg_pool2d", adaptive_average);
  kernels.add("_adaptive_avg_pool2d_backward", adaptive_average_backward);
}

}  // namespace fsdp
