// DefaultDevice: a scope that sets the device of tensors that are made without a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace fsdp {

// A scope in which factory functions (torch::empty, torch::randn, torch::arange, …) make tensors on
// `device` if the calling thread calls them without a device. It corresponds to
// torch.set_default_device in Python. For the CPU the scope does nothing. Scopes may be nested.
// Each scope must be destroyed in the thread that made it.
//
// The scope does not affect some calls: calls that receive a tensor (zeros_like, new_zeros, to),
// calls with a generator or with pinned memory, and calls whose memory the host provides or fills
// (mapped files, at::empty, torch::tensor of a list, at::from_blob). LSTM and similar modules keep
// the parameters that they were constructed with: the scope prevents cuDNN from moving these
// parameters into one shared block of memory.
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
