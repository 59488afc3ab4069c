// Adds kernels for meta tensors that LibTorch's C++ lacks. They compute only shapes, strides and
// dtypes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace fsdp {

// [Note: kernels without memory] Python registers many of LibTorch's meta kernels, so C++ has no
// layer_norm, convolution or embedding on meta. The missing kernels are added here, at the first
// plan of a process, and only if LibTorch has none: a version that gains a kernel keeps its own.
// They are registered only for the dispatch key Meta, so nothing changes for tensors with memory.
// Each kernel allocates the same bytes in the same order as the CPU's kernel of LibTorch 2.15,
// scratch included, so that the counted bytes are the CPU's; tests/meta/meta_kernels_test.cpp
// compares each with the CPU. Operators that are still missing run on zeros (operator_probe.h).
class MetaKernels {
 public:
  MetaKernels();

  // Registers a kernel; `name`: "relu", "where.self". Does nothing if LibTorch has a kernel for
  // Meta, or no such operator.
  template <class Kernel>
  void add(const std::string& name, Kernel&& kernel) {
    if (lacks(name)) library_.impl(name.c_str(), std::forward<Kernel>(kernel));
  }
  // Registers a kernel that composes the operator of differentiable operators, as LibTorch does.
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

// Allocates and frees memory, so that a CPU kernel's scratch shows in the peak.
void scratch(int64_t numel, const at::TensorOptions& options);
inline void scratch_bytes(int64_t bytes) {
  scratch(bytes, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}
// Sets shape and storage of `out` to those of `made`. LibTorch's resize_ of a meta tensor calls no
// allocator, so its bytes would not be counted.
void become(const at::Tensor& out, const at::Tensor& made);
// Returns a meta tensor whose bytes are not counted, where only a shape is needed.
at::Tensor uncounted(at::IntArrayRef shape, const at::TensorOptions& options);
// Returns a CPU tensor with the properties of `tensor` and no memory, for LibTorch's functions that
// choose an implementation. A read of its data throws.
at::Tensor on_cpu(const at::Tensor& tensor);
std::optional<at::Tensor> on_cpu(const std::optional<at::Tensor>& tensor);

}  // namespace meta
}  // namespace fsdp
