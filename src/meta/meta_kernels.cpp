#include "meta/meta_kernels.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "libtorch/torch_compat.h"
#include "libtorch/torch_memory.h"
#include "meta/operator_probe.h"

namespace fsdp {

MetaKernels::MetaKernels()
    : library_(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__),
      autograd_(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__) {}

bool MetaKernels::lacks(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? std::string() : name.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findOp({"aten::" + name.substr(0, dot), overload});
  return op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

void add_meta_kernels() {
  // The object is never freed. A torch::Library unregisters its kernels when it is destroyed, and
  // the order of static destructors is unknown. Without volatile, the compiler drops the pointer,
  // and the leak sanitizer reports the object.
  static const auto* const volatile kernels = [] {
    auto* made = new MetaKernels;
    add_attention(*made);
    add_convolutions(*made);
    add_elementwise(*made);
    add_indexing(*made);
    add_norms(*made);
    add_pooling(*made);
    add_operator_probes();
    return made;
  }();
  static_cast<void>(kernels);
}

namespace meta {

void scratch(int64_t numel, const at::TensorOptions& options) {
  static_cast<void>(at::empty({numel}, options));
}

void become(const at::Tensor& out, const at::Tensor& made) {
  c10::TensorImpl* impl = out.unsafeGetTensorImpl();
  if (out.numel() != made.numel()) impl->set_storage_keep_dtype(made.storage());
  impl->set_sizes_and_strides(made.sizes(), made.strides());
}

at::Tensor uncounted(at::IntArrayRef shape, const at::TensorOptions& options) {
  const torch_memory::MeterScope none(nullptr);  // no meter counts in this scope
  return at::empty(shape, options);
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  const torch_compat::BoundStorage nowhere(
      static_cast<int64_t>(tensor.storage().nbytes()), at::kCPU,
      "fsdp: LibTorch reads a planned tensor, which has no memory");
  return nowhere.view(*dtype_of(tensor.scalar_type()), tensor.storage_offset(), tensor.sizes(),
                      tensor.strides());
}

std::optional<at::Tensor> on_cpu(const std::optional<at::Tensor>& tensor) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return on_cpu(*tensor);
}

}  // namespace meta
}  // namespace fsdp
