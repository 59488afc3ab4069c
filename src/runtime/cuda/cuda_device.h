// A GPU as a device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_resources.h"
#include "runtime/cuda/cuda_stream.h"
#include "runtime/device.h"

namespace fsdp {

// How the device's clock and the host's lie to each other.
struct CudaClock {
  explicit CudaClock(int current) : zero(current, CudaTiming::kOn) {}
  CudaEvent zero;
  int64_t zero_ns = 0;  // when the device reached it, in nanoseconds of span_clock_ns

  // Requires: `event` is reached, and has timing.
  int64_t time_of(cudaEvent_t event) const;
};

// Streams that it makes are non-blocking: LibTorch's default stream orders nothing of theirs.
class CudaDevice : public Device {
 public:
  // `table` lives as long; its kernels are loaded.
  // Errors: DeviceError if there is no such device.
  CudaDevice(int ordinal, const kernels::KernelTable& table);
  ~CudaDevice() override;

  int ordinal() const { return ordinal_; }

  std::string_view name() const override { return name_; }
  void make_current() const override;
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  // One object for each handle, made at the first call.
  Stream& compute_stream(void* native = nullptr) const override;
  void drain() const noexcept override;
  void fail_waits(const std::exception_ptr& why) const noexcept override;
  // Throws what its waits fail with, if they do.
  void require_trusted() const;
  Buffer allocate(int64_t bytes, MemoryKind kind) const override;
  const kernels::KernelTable* kernels() const override { return &kernels_; }

  // Events are taken from here and come back: making one for every mark costs more than recording
  // it. A mark that is gone has no waits to come, and those issued have what they wait for.
  CudaEvent take_event() const;
  void give_event(CudaEvent event) const noexcept;

  // A new one each second: CUDA tells a distance in time as a float of milliseconds, which is exact
  // to a microsecond for some seconds only.
  std::shared_ptr<const CudaClock> clock() const;

 private:
  const int ordinal_;
  const std::string name_;
  const kernels::KernelTable& kernels_;
  mutable std::atomic<bool> waits_fail_ = false;  // from when on `why_` stays as it is
  mutable std::mutex mutex_;                      // of what follows
  mutable std::exception_ptr why_;
  mutable std::vector<CudaEvent> events_;
  mutable std::map<cudaStream_t, std::unique_ptr<CudaStream>> compute_streams_;
  mutable std::shared_ptr<const CudaClock> clock_;  // shared with who tells times by it
  // On which memory is zeroed, and clocks are set: not the default stream, behind which LibTorch's
  // work would wait.
  std::optional<CudaStreamHandle> zeroing_;
};

}  // namespace fsdp
