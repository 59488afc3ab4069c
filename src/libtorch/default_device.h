// On which device LibTorch makes a tensor when nobody says it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace fsdp {

// While it lives, factory functions (torch::empty, torch::randn, torch::arange, …) that the calling
// thread calls without a device make their tensors on `device`, as torch.set_default_device does in
// Python. On the CPU it is nothing. Scopes nest; each is destroyed in its thread.
//
// As they are otherwise: tensors made from others (zeros_like, new_zeros, to); what is given a
// generator or asks for pinned memory, which place a tensor as a device does; mapped files;
// at::empty, which at::tensor fills from the host; torch::tensor of a list and at::from_blob, which
// lie on the CPU. LSTM and its like keep the parameters that they were constructed with: cuDNN lays
// them out anew otherwise, and then they share memory.
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
