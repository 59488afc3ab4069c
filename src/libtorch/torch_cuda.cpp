#include "libtorch/torch_cuda.h"

#include <ATen/Context.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <string>

#include "fsdp/error.h"

namespace fsdp::torch_cuda {
namespace {

const c10::impl::DeviceGuardImplInterface& cuda() {
  return *c10::impl::getDeviceGuardImpl(at::DeviceType::CUDA);
}

// Returns LibTorch's caching allocator for GPUs; null if it does not exist or is not initialised.
c10::DeviceAllocator* allocator() {
  auto* const cache = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(at::DeviceType::CUDA));
  return cache != nullptr && cache->initialized() ? cache : nullptr;
}

}  // namespace

void require_cuda(at::Device device) {
  if (!device.is_cuda() || at::globalContext().hasCUDA()) return;
  throw StateError(
      {.what = "LibTorch has no CUDA in this process",
       .cause = "a call (such as torch::manual_seed) asked LibTorch for CUDA before its CUDA "
                "library was loaded, and LibTorch remembers that it had no CUDA",
       .hint = "make the mesh before any other call of LibTorch"});
}

void* current_stream(at::Device device) {
  if (!device.is_cuda()) return nullptr;
  return cuda().getStreamNativeHandle(cuda().getStream(device));
}

void leave_default_stream(at::Device device) {
  if (!device.is_cuda() || current_stream(device) != nullptr) return;
  const c10::Stream before = cuda().getStream(device);
  const c10::Stream own = cuda().getStreamFromGlobalPool(device);
  // An event of c10 makes the new stream wait for the work issued to the old stream.
  void* written = nullptr;
  cuda().record(&written, before, device.index(), c10::EventFlag::BACKEND_DEFAULT);
  cuda().block(written, own);
  cuda().destroyEvent(written, device.index());
  static_cast<void>(cuda().exchangeStream(own));
}

void run_backward_here(at::Device device) {
  if (device.is_cuda()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

bool empty_cache() {
  c10::DeviceAllocator* const cache = allocator();
  if (cache == nullptr) return false;
  cache->emptyCache();
  return true;
}

int64_t held_bytes(at::Device device) {
  c10::DeviceAllocator* const cache = allocator();
  if (cache == nullptr) {
    throw InvalidArgument({.what = "cannot read how much memory LibTorch holds on " + device.str(),
                           .where = "Options::memory_limit",
                           .cause = "LibTorch's CUDA allocator is missing or was replaced",
                           .hint = "leave memory_limit at 0 on this device"});
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return cache->getDeviceStats(device.index()).reserved_bytes.at(kAll).current;
}

NamedRange::NamedRange(at::Device device, std::string_view what, std::string_view subject)
    : is_named_(device.is_cuda()) {
  if (!is_named_) return;
  std::string name(what);
  if (!subject.empty()) name.append(" ").append(subject);
  torch::profiler::impl::cudaStubs()->rangePush(name.c_str());
}

NamedRange::~NamedRange() {
  if (is_named_) torch::profiler::impl::cudaStubs()->rangePop();
}

}  // namespace fsdp::torch_cuda
