// Implements operators on meta tensors that select or move elements by index.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>

#include "meta/meta_kernels.h"

namespace fsdp {
namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  std::vector<int64_t> shape = self.sizes().vec();
  if (self.dim() > 0) shape[c10::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(shape, self.options());
}

// LibTorch's own index_select_backward is not used, because it treats meta tensors as a tensor
// subclass and allocates one more tensor.
at::Tensor index_select_backward(const at::Tensor& gradient, at::IntArrayRef sizes, int64_t dim,
                                 const at::Tensor& index) {
  return at::zeros(sizes, gradient.options()).index_add_(dim, index, gradient);
}

// The unused tensors stand for the copies that the CPU kernel makes of non-contiguous arguments, so
// their bytes count until the function returns.
at::Tensor embedding_dense_backward(const at::Tensor& gradient, const at::Tensor& indices,
                                    int64_t rows, int64_t /*padding*/, bool /*scale_by_freq*/) {
  const at::Tensor contiguous_indices = indices.contiguous();
  const at::Tensor flat = gradient.reshape({indices.numel(), gradient.size(-1)});
  return at::zeros({rows, gradient.size(-1)}, gradient.options());
}

at::Tensor chosen(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const at::ScalarType type = at::native::result_type(self, other);
  const at::Tensor one = self.scalar_type() == type ? self : self.to(type);
  const at::Tensor two = other.scalar_type() == type ? other : other.to(type);
  return at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .allow_cpu_scalars(true)
      .declare_static_dtype_and_device(type, at::kMeta)
      .add_owned_output(at::Tensor())
      .add_const_input(condition)
      .add_const_input(one)
      .add_const_input(two)
      .build()
      .output();
}

at::Tensor& chosen_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                       at::Tensor& out) {
  meta::become(out, chosen(condition, self, other));
  return out;
}

at::Tensor flip(const at::Tensor& self, at::IntArrayRef /*dims*/) {
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

at::Tensor roll(const at::Tensor& self, at::IntArrayRef /*shifts*/, at::IntArrayRef /*dims*/) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

at::Tensor unfold_backward(const at::Tensor& gradient, at::IntArrayRef input_sizes, int64_t /*dim*/,
                           int64_t /*size*/, int64_t /*step*/) {
  return at::zeros(input_sizes, gradient.options());
}

}  // namespace

void add_indexing(MetaKernels& kernels) {
  kernels.add("index_select", index_select);
  kernels.add_composed("index_select_backward", index_select_backward);
  kernels.add("embedding_dense_backward", embedding_dense_backward);
  kernels.add("where.self", chosen);
  kernels.add("where.self_out", chosen_out);
  kernels.add("flip", flip);
  kernels.add("roll", roll);
  kernels.add("unfold_backward", unfold_backward);
}

}  // namespace fsdp
