// Implements every kernel of the fake CUDA. It calls the CPU's kernel on host tensors over the same
// memory.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "support/fake_cuda/fake_cuda.h"

namespace fsdp::testing {
namespace {

// Returns a tensor over `storage` with the shape of `like`. `key` makes it a CPU tensor or a CUDA
// tensor.
at::Tensor make_view(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  return tensor;
}

// Returns host memory as device memory. The returned pointer owns the host storage.
c10::DataPtr on_device(const c10::Storage& host) {
  void* data = host.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return {data, new c10::Storage(host), [](void* kept) { delete static_cast<c10::Storage*>(kept); },
          kGpu};
}

// Returns true for operators that only make views. They may receive a tensor without memory.
bool makes_view(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames{"aten::as_strided", "aten::view",
                                                   "aten::_reshape_alias", "aten::unfold"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// A call of an operator on the host. Each device tensor and storage has a host twin over the same
// memory, so that results that alias inputs still alias them.
class HostCall {
 public:
  explicit HostCall(bool may_be_unseated) : may_be_unseated_(may_be_unseated) {}

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(to_host(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& each : value.toOptionalTensorVector()) {
        list.push_back(each ? std::optional(to_host(*each)) : std::nullopt);
      }
      return list;
    }
    return value;
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return to_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(to_device(each));
    return list;
  }

  // If the kernel has resized outputs, copies their new size and memory to the device tensors.
  void take_sizes() {
    for (const auto& [device, host] : storages_) {
      auto* impl = device.unsafeGetStorageImpl();
      auto* now = host.unsafeGetStorageImpl();
      if (now->_mutable_data_ptr_no_checks().get() == impl->_mutable_data_ptr_no_checks().get()) {
        continue;
      }
      impl->set_data_ptr_noswap(on_device(host));
      impl->set_nbytes(now->nbytes());
    }
    for (const auto& [device, host] : tensors_) {
      if (device.sizes() == host.sizes() && device.strides() == host.strides()) continue;
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(),
                                                          host.storage_offset());
    }
  }

 private:
  struct TensorPair {
    at::Tensor device, host;
  };
  struct StoragePair {
    c10::Storage device, host;
  };

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    for (const TensorPair& each : tensors_) {
      if (each.device.is_same(tensor)) return each.host;
    }
    if (!may_be_unseated_ && tensor.numel() > 0) tensor.const_data_ptr();  // throws if unbound
    tensors_.push_back(
        {tensor, make_view(host_of(tensor.storage()), c10::DispatchKey::CPU, tensor)});
    return tensors_.back().host;
  }

  const c10::Storage& host_of(const c10::Storage& device) {
    for (const StoragePair& each : storages_) {
      if (each.device.unsafeGetStorageImpl() == device.unsafeGetStorageImpl()) return each.host;
    }
    auto* impl = device.unsafeGetStorageImpl();
    void* data = impl->_mutable_data_ptr_no_checks().get();
    storages_.push_back(
        {device, c10::make_intrusive<c10::StorageImpl>(
                     c10::StorageImpl::use_byte_size_t(), impl->nbytes(),
                     c10::DataPtr(data, c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU),
                     /*resizable=*/true)});
    return storages_.back().host;
  }

  at::Tensor to_device(const at::Tensor& result) {
    if (!result.defined() || !result.has_storage()) return result;
    for (const TensorPair& each : tensors_) {
      if (each.host.is_same(result)) return each.device;
    }
    for (const StoragePair& each : storages_) {
      if (each.host.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
        return make_view(each.device, c10::DispatchKey::CUDA, result);
      }
    }
    const c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), result.storage().nbytes(), on_device(result.storage()),
        c10::GetAllocator(c10::DeviceType::CUDA), /*resizable=*/true);
    return make_view(storage, c10::DispatchKey::CUDA, result);
  }

  const bool may_be_unseated_;
  std::vector<TensorPair> tensors_;
  std::vector<StoragePair> storages_;
};

void note_copy(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cuda() == from.is_cuda()) return;
  const auto on = fake_cuda::current_stream();
  if (from.is_cuda()) {
    fake_cuda::note(fmt::format("copy from the device on stream {}", on));
  } else {
    const bool pinned = fake_cuda::is_pinned(from.storage().data());
    fake_cuda::note(fmt::format("copy from {} memory to the device on stream {}",
                                pinned ? "pinned" : "pageable", on));
  }
}

// Runs an operator on the host. It is the fallback of the fake CUDA's dispatch key.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const size_t begin = stack->size() - schema.arguments().size();
  if (name == "aten::copy_") note_copy((*stack)[begin].toTensor(), (*stack)[begin + 1].toTensor());
  HostCall call(makes_view(name));
  for (size_t i = begin; i < stack->size(); ++i) (*stack)[i] = call.to_host((*stack)[i]);
  // If the caller passed no generator, the operator must use the GPU's default generator, not the
  // CPU's.
  const auto generator = schema.argumentIndexWithName("generator");
  if (generator && (*stack)[begin + *generator].isNone()) {
    (*stack)[begin + *generator] = at::detail::getCUDAHooks().getDefaultGenerator(0);
  }
  op.callBoxed(stack);
  call.take_sizes();
  for (size_t i = begin; i < stack->size(); ++i) (*stack)[i] = call.to_device((*stack)[i]);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                 std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(size, c10::GetAllocator(c10::DeviceType::CUDA),
                                              c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                              c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/, std::optional<bool> /*pin_memory*/) {
  return at::Tensor(at::detail::empty_strided_generic(
      size, stride, c10::GetAllocator(c10::DeviceType::CUDA),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype)));
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  // LibTorch has its own CUDA implementation of these operators, which precedes a device's
  // fallback.
  for (const char* name : {"copy_", "native_layer_norm"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace
}  // namespace fsdp::testing
