// CUDA's resources as values that give themselves back. Destructors never throw, and after an error
// that stays they do nothing that matters: the process has lost its device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "runtime/device.h"

namespace fsdp {

// The device on which the calling thread's CUDA calls act, for a scope.
class CudaScope {
 public:
  explicit CudaScope(int ordinal) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ == ordinal) return;
    check_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = true;
  }
  ~CudaScope() {
    if (changed_) forget_cuda(cudaSetDevice(before_));
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

enum class CudaTiming : uint8_t { kOff, kOn };

// Of the current device. Only with timing on it tells the time, and costs more.
class CudaEvent {
 public:
  explicit CudaEvent(CudaTiming timing = CudaTiming::kOff) {
    const unsigned flags = timing == CudaTiming::kOn ? cudaEventDefault : cudaEventDisableTiming;
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_ != nullptr) forget_cuda(cudaEventDestroy(event_));
  }

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// A stream of the current device behind which LibTorch's default stream orders nothing. Waits for
// its work before it goes: destroying a CUDA stream lets the work go on alone.
class CudaStreamHandle {
 public:
  explicit CudaStreamHandle(StreamPriority priority) {
    int lowest = 0, highest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
               "cudaDeviceGetStreamPriorityRange");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority == StreamPriority::kHigh ? highest : lowest),
               "cudaStreamCreateWithPriority");
  }
  CudaStreamHandle(CudaStreamHandle&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStreamHandle& operator=(CudaStreamHandle&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStreamHandle() {
    if (stream_ == nullptr) return;
    forget_cuda(cudaStreamSynchronize(stream_));
    forget_cuda(cudaStreamDestroy(stream_));
  }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace fsdp
