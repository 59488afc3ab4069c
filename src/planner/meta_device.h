// A device without memory, on which the engine lays itself out as on the one that is planned for.
#pragma once

#include "runtime/device.h"

namespace fsdp {

// [Note: a device without memory] Buffers for streams have addresses that no process can have
// memory at: they can be told apart and counted with, and whoever touches one ends there. Streams
// and kernels do nothing, at once. So the engine makes every decision as on a real device and moves
// no byte. What the host may touch itself (kHost, kPinned) is there: zeros, of which the system
// gives a page when it is written. For LibTorch it is the device of tensors without memory, "meta".
class MetaDevice final : public Device {
 public:
  // `compute_is_inline`: as the host's; false: as a GPU's, whose compute stream is waited for.
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
