// CUDA's resources as values that give themselves back. Destructors never throw, and after an error
// that stays they do nothing that matters: the process has lost its device.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "runtime/cuda/cuda_error.h"

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
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// An event that does not tell the time.
class CudaEvent {
 public:
  CudaEvent() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace fsdp
