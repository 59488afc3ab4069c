#include "shard/torch_cuda.h"

#include <c10/core/AutogradState.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fsdp::torch_cuda {
namespace {

const c10::impl::DeviceGuardImplInterface& cuda() {
  return *c10::impl::getDeviceGuardImpl(at::DeviceType::CUDA);
}

}  // namespace

void* current_stream(at::Device device) {
  if (!device.is_cuda()) return nullptr;
  return cuda().getStreamNativeHandle(cuda().getStream(device));
}

void leave_default_stream(at::Device device) {
  if (!device.is_cuda() || current_stream(device) != nullptr) return;
  const c10::Stream before = cuda().getStream(device);
  const c10::Stream own = cuda().getStreamFromGlobalPool(device);
  void* written = nullptr;
  cuda().record(&written, before, device.index(), c10::EventFlag::BACKEND_DEFAULT);
  cuda().block(written, own);
  cuda().destroyEvent(written, device.index());
  static_cast<void>(cuda().exchangeStream(own));
}

void run_backward_here(at::Device device) {
  if (device.is_cuda()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace fsdp::torch_cuda
