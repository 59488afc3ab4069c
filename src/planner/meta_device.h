// Defines a device without memory, on which the engine allocates as on the planned device.
#pragma once

#include "runtime/device.h"

namespace fsdp {

// [Note: a device without memory] Device buffers have addresses at which no process can have
// memory. They are distinct and support pointer arithmetic, and an access to one ends the process.
// Streams and kernels return at once and do nothing. So the engine makes every decision as on a
// real device and moves no byte. Buffers that the host may access (kHost, kPinned) have memory:
// zeros, and the system allocates a page when it is written. LibTorch's name of this device is
// "meta", the device of its tensors without memory.
class MetaDevice final : public Device {
 public:
  // `compute_is_inline`: true for the CPU's compute stream, false for a GPU's.
  explicit MetaDevice(bool compute_is_inline);
  ~MetaDevice() override;

  std::string_view name() const override { return "meta"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  Stream& compute_stream(void* native) const override;
  Buffer allocate(int64_t bytes, MemoryKind kind) const override;
  const kernels::KernelTable* kernels() const override;

 private:
  const std::unique_ptr<Stream> compute_;
};

}  // namespace fsdp
