// RAII classes for CUDA resources. Destructors never throw. After a sticky error they may fail to
// free a resource. This does not matter, because the process can no longer use the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <new>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "runtime/device.h"

namespace fsdp {

// Returns true if the process has a context on the device, or if the driver cannot answer.
bool has_cuda_context(int ordinal) noexcept;

// A scope in which the CUDA calls of this thread act on device `ordinal`.
//
// [Note: one context a process] cudaSetDevice creates a context on the device. If a thread calls
// another CUDA function first, this call also creates a context, on the thread's current device:
// device 0, unless the thread has set another one. Such a context would occupy half a gigabyte on a
// GPU that may belong to another rank, and a GPU in exclusive mode refuses a second process. So
// every call that needs a context, also a release or a query, runs in a CudaScope. The destructor
// makes the former device current again only if the process already has a context on the former
// device.
class CudaScope {
 public:
  explicit CudaScope(int ordinal) : CudaScope(ordinal, std::nothrow) { check_cuda(code_, call_); }
  // A constructor for scopes in destructors, which cannot throw. If a CUDA call fails, clears the
  // error.
  CudaScope(int ordinal, std::nothrow_t /*forgets*/) noexcept {
    code_ = cudaGetDevice(&before_);
    if (code_ == cudaSuccess && before_ != ordinal) {
      call_ = "cudaSetDevice";
      code_ = cudaSetDevice(ordinal);
      changed_ = code_ == cudaSuccess;
    }
    forget_cuda(code_);
  }
  ~CudaScope() {
    if (changed_ && has_cuda_context(before_)) forget_cuda(cudaSetDevice(before_));
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
  const char* call_ = "cudaGetDevice";
  cudaError_t code_ = cudaSuccess;
};

enum class CudaTiming : uint8_t { kOff, kOn };

// An event of device `current`. An event can report a time only if it is created with timing, which
// makes it more expensive.
// Requires: `current` is the current device of the calling thread.
class CudaEvent {
 public:
  explicit CudaEvent(int current, CudaTiming timing = CudaTiming::kOff) : ordinal_(current) {
    const unsigned flags = timing == CudaTiming::kOn ? cudaEventDefault : cudaEventDisableTiming;
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  CudaEvent(CudaEvent&& other) noexcept
      : ordinal_(other.ordinal_), event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(ordinal_, other.ordinal_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_ == nullptr) return;
    const CudaScope scope(ordinal_, std::nothrow);
    forget_cuda(cudaEventDestroy(event_));
  }

  cudaEvent_t get() const { return event_; }

 private:
  int ordinal_;
  cudaEvent_t event_ = nullptr;
};

// A non-blocking stream of device `current`: LibTorch's default stream does not order its work. The
// destructor waits for the stream's work, because pending work would continue after the stream is
// destroyed, and could use memory that is already freed.
// Requires: `current` is the current device of the calling thread.
class CudaStreamHandle {
 public:
  CudaStreamHandle(int current, StreamPriority priority) : ordinal_(current) {
    int lowest = 0, highest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
               "cudaDeviceGetStreamPriorityRange");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority == StreamPriority::kHigh ? highest : lowest),
               "cudaStreamCreateWithPriority");
  }
  CudaStreamHandle(CudaStreamHandle&& other) noexcept
      : ordinal_(other.ordinal_), stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStreamHandle& operator=(CudaStreamHandle&& other) noexcept {
    std::swap(ordinal_, other.ordinal_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStreamHandle() {
    if (stream_ == nullptr) return;
    const CudaScope scope(ordinal_, std::nothrow);
    forget_cuda(cudaStreamSynchronize(stream_));
    forget_cuda(cudaStreamDestroy(stream_));
  }

  cudaStream_t get() const { return stream_; }

 private:
  int ordinal_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace fsdp
