// DefaultDevice: the device of tensors that are made without one.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace fsdp {

// A scope in which factory functions (torch::empty, torch::randn, torch::arange, …) that the
// calling thread calls without a device make their tensors on `device`, as torch.set_default_device
// does in Python. For the CPU it does nothing. Scopes nest; each is destroyed in its thread.
//
// Not affected are tensors made from others (zeros_like, new_zeros, to); calls with a generator or
// with pinned memory, which determine the device; mapped files; at::empty, which at::tensor fills
// from the host; torch::tensor of a list and at::from_blob, which are on the CPU. LSTM and similar
// modules keep the parameters that they were constructed with: otherwise cuDNN lays them out anew,
// and they share memory.
class DefaultDevice {
 public:
  explicit DefaultDevice(at::Device device);
  ~DefaultDevice();
  DefaultDevice(const DefaultDevice&) = delete;
  DefaultDevice& operator=(const DefaultDevice&) = delete;

 private:
  const std::optional<at::Device> before_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> key_;
};

}  // namespace fsdp
