// Kernels for tensors without memory that LibTorch's C++ lacks: shapes, strides and dtypes alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace fsdp {

// [Note: kernels without memory] Python registers many of LibTorch's meta kernels, so that C++ has
// no layer_norm, convolution or embedding on meta. Those that are missing are added here, at the
// first plan of a process, and only where LibTorch has none: a version that gains one keeps its
// own. They serve the dispatch key Meta alone, so that nothing changes for tensors with memory.
// Each allocates what the CPU's kernel of LibTorch 2.15 allocates, in that order, scratch memory
// included, so that counted bytes are the CPU's; tests/meta/meta_kernels_test.cpp holds each
// against the CPU. What even these do not have is run on zeros (operator_probe.h).
class MetaKernels {
 public:
  MetaKernels();

  // `name`: "relu", "where.self". Nothing happens where LibTorch has a kernel for Meta, or no such
  // operator.
  template <class Kernel>
  void add(const std::string& name, Kernel&& kernel) {
    if (lacks(name)) library_.impl(name.c_str(), std::forward<Kernel>(kernel));
  }
  // Of an operator that LibTorch composes of others that autograd knows, as `kernel` does.
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

// All of them, once a process. Thread-safe.
void add_meta_kernels();

namespace meta {

// Memory that a kernel of the CPU needs while it runs.
void scratch(int64_t numel, const at::TensorOptions& options);
inline void scratch_bytes(int64_t bytes) {
  scratch(bytes, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}
// Gives an `out` that was made empty the shape and the bytes of `made`: LibTorch's resize_ of a
// tensor without memory asks no allocator, so that nothing would be counted.
void become(const at::Tensor& out, const at::Tensor& made);
// A shape that nobody has memory for.
at::Tensor uncounted(at::IntArrayRef shape, const at::TensorOptions& options);
// The tensor as the CPU has it, without memory: for asking LibTorch what it would do there.
at::Tensor on_cpu(const at::Tensor& tensor);
std::optional<at::Tensor> on_cpu(const std::optional<at::Tensor>& tensor);

}  // namespace meta
}  // namespace fsdp
