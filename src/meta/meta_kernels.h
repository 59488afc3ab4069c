// Adds kernels for meta tensors that are missing in LibTorch's C++. They compute only shapes,
// strides and dtypes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace fsdp {

// [Note: kernels without memory] Many of LibTorch's meta kernels are registered by Python, so C++
// has no layer_norm, convolution or embedding on meta. The first plan of a process adds the missing
// kernels. A kernel is added only if LibTorch has none. So if a later LibTorch has the kernel,
// LibTorch's kernel is used. The kernels are registered only for the dispatch key Meta, so nothing
// changes for tensors with memory. Each kernel allocates the same bytes in the same order as the
// CPU kernel of LibTorch 2.15, scratch included. So the counted bytes are those of the CPU.
// tests/meta/meta_kernels_test.cpp compares each kernel with the CPU. Operators that are still
// missing run on zeros (operator_probe.h).
class MetaKernels {
 public:
  MetaKernels();

  // Registers a kernel for `name` ("relu", "where.self"). Does nothing if LibTorch already has a
  // kernel for Meta or does not have the operator.
  template <class Kernel>
  void add(const std::string& name, Kernel&& kernel) {
    if (lacks(name)) library_.impl(name.c_str(), std::forward<Kernel>(kernel));
  }
  // Registers a kernel that composes the operator from differentiable operators, as LibTorch does.
  template <class Kernel>
  void add_composed(const std::string& name, Kernel&& kernel) {
    if (!lacks(name)) return;
    library_.impl(name.c_str(), kernel);
    autograd_.impl(name.c_str(), kernel);
  }

 private:
  static bool lacks(const std::string& name);

  torch::Library library_;
  torch::Library autograd_;
};

void add_attention(MetaKernels& kernels);
void add_convolutions(MetaKernels& kernels);
void add_elementwise(MetaKernels& kernels);
void add_indexing(MetaKernels& kernels);
void add_norms(MetaKernels& kernels);
void add_pooling(MetaKernels& kernels);

// Adds all kernels, once for each process. Thread-safe.
void add_meta_kernels();

namespace meta {

// Allocates memory and frees it, so that the scratch of a CPU kernel is counted in the peak.
void scratch(int64_t numel, const at::TensorOptions& options);
inline void scratch_bytes(int64_t bytes) {
  scratch(bytes, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}
// Replaces the shape and storage of `out` by those of `made`. LibTorch's resize_ is not used,
// because for meta tensors it calls no allocator and its bytes would not be counted.
void become(const at::Tensor& out, const at::Tensor& made);
// Returns a meta tensor whose bytes are not counted. It serves callers that need only a shape.
at::Tensor uncounted(at::IntArrayRef shape, const at::TensorOptions& options);
// Returns a CPU tensor that has the properties of `tensor` but no memory, for LibTorch functions
// that choose an implementation. Reading its data throws.
at::Tensor on_cpu(const at::Tensor& tensor);
std::optional<at::Tensor> on_cpu(const std::optional<at::Tensor>& tensor);

}  // namespace meta
}  // namespace fsdp
