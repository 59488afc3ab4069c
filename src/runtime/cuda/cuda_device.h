// CudaDevice: a GPU as a Device.
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

// A point in time that is known both on the device's clock and on the host's clock. It converts
// device times to host times.
struct CudaClock {
  explicit CudaClock(int current) : zero(current, CudaTiming::kOn) {}
  CudaEvent zero;
  int64_t zero_ns = 0;  // time of `zero` in nanoseconds of span_clock_ns

  // Returns the time of `event` in nanoseconds of span_clock_ns.
  // Requires: `event` is reached and was created with timing.
  int64_t time_of(cudaEvent_t event) const;
};

// A GPU. Its streams are non-blocking, so LibTorch's default stream does not order their work.
class CudaDevice : public Device {
 public:
  // Requires: `table` exists as long as the device, and the kernels in it are loaded.
  // Errors: DeviceError if the device does not exist.
  CudaDevice(int ordinal, const kernels::KernelTable& table);
  ~CudaDevice() override;

  int ordinal() const { return ordinal_; }

  std::string_view name() const override { return name_; }
  void make_current() const override;
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  // Returns the stream object of this handle. The first call for a handle creates the object.
  Stream& compute_stream(void* native = nullptr) const override;
  void drain() const noexcept override;
  void fail_waits(const std::exception_ptr& why) const noexcept override;
  // Throws the exception that fail_waits received. Does nothing if fail_waits was not called.
  void require_trusted() const;
  Buffer allocate(int64_t bytes, MemoryKind kind) const override;
  const kernels::KernelTable* kernels() const override { return &kernels_; }

  // Returns an event from the pool, or a new one if the pool is empty. Creating an event costs more
  // than recording it.
  // Requires: the device is current in the calling thread.
  CudaEvent take_event() const;
  // Returns an event to the pool. The event may be recorded again at once: its mark is destroyed,
  // so no new wait for the event can begin, and waits that were already issued do not see a later
  // record.
  void give_event(CudaEvent event) const noexcept;

  // Returns the current clock. A new clock is made every second, because CUDA reports time
  // differences as a float of milliseconds, and this is exact to a microsecond only for differences
  // of some seconds.
  std::shared_ptr<const CudaClock> clock() const;

 private:
  const int ordinal_;
  const std::string name_;
  const kernels::KernelTable& kernels_;
  mutable std::atomic<bool> waits_fail_ = false;  // once true, `why_` is constant
  mutable std::mutex mutex_;                      // guards the members below
  mutable std::exception_ptr why_;
  mutable std::vector<CudaEvent> events_;
  mutable std::map<cudaStream_t, std::unique_ptr<CudaStream>> compute_streams_;
  mutable std::shared_ptr<const CudaClock> clock_;  // shared with spans, which read times by it
  // A stream for zeroing memory and for recording clocks. On the default stream this work would
  // delay LibTorch's work.
  std::optional<CudaStreamHandle> zeroing_;
};

}  // namespace fsdp
