// Defines a device without memory, on which the engine allocates as on the planned device.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace fsdp {

class StepClock;

// [Note: a device without memory] The addresses of device buffers are in a range in which no
// process can have memory. They are distinct and support pointer arithmetic. An access to one of
// them ends the process. Streams and kernels return at once and do nothing, so the engine makes the
// same decisions as on a real device and moves no bytes. With a clock, they take virtual time
// ([Note: virtual time]). Buffers that the host may access (kHost, kPinned) do have memory. It is
// zeroed, and the system allocates a page when it is written.
// LibTorch calls this device "meta", which is its device for tensors without memory.
class MetaDevice final : public Device {
 public:
  // If `compute_is_inline` is true, the compute stream is inline, as on the CPU. On a GPU it is
  // not.
  // `clock` gives the work of streams its time; null: work takes no time.
  // Requires: the clock outlives this object.
  explicit MetaDevice(bool compute_is_inline, StepClock* clock = nullptr);
  // A device with time for the kernels of a host that is not the planned device.
  static std::unique_ptr<MetaDevice> host_with(StepClock& clock);
  ~MetaDevice() override;

  std::string_view name() const override { return "meta"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  Stream& compute_stream(void* native) const override;
  Buffer allocate(int64_t bytes, MemoryKind kind) const override;
  const kernels::KernelTable* kernels() const override;

 private:
  MetaDevice(bool compute_is_inline, StepClock* clock, bool is_host);

  StepClock* const clock_;
  const bool is_host_;
  const std::unique_ptr<Stream> compute_;
};

}  // namespace fsdp
