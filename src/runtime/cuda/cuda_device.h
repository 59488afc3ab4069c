// A GPU as a device.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/cuda_stream.h"
#include "runtime/device.h"

namespace fsdp {

// Streams that it makes are non-blocking: LibTorch's default stream orders nothing of theirs.
class CudaDevice : public Device {
 public:
  // `table` lives as long; its kernels are loaded.
  // Errors: DeviceError if there is no such device.
  CudaDevice(int ordinal, const kernels::KernelTable& table);
  ~CudaDevice() override;

  int ordinal() const { return ordinal_; }

  std::string_view name() const override { return name_; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  // One object for each handle, made at the first call.
  Stream& compute_stream(void* native = nullptr) const override;
  Buffer allocate(int64_t bytes, MemoryKind kind) const override;
  const kernels::KernelTable* kernels() const override { return &kernels_; }

  // Events are taken from here and come back: making one for every mark costs more than recording
  // it. A mark that is gone has no waits to come, and those issued have what they wait for.
  CudaEvent take_event() const;
  void give_event(CudaEvent event) const noexcept;

 private:
  const int ordinal_;
  const std::string name_;
  const kernels::KernelTable& kernels_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::vector<CudaEvent> events_;
  mutable std::map<cudaStream_t, std::unique_ptr<CudaStream>> compute_streams_;
  // On which memory is zeroed: not the default stream, behind which LibTorch's work would wait.
  cudaStream_t zeroing_ = nullptr;
};

}  // namespace fsdp
