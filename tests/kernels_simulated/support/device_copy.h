// Host memory that a kernel call names, as it lies on the simulated GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "support/sim/cuda/simulation.h"

namespace fsdp::test {

// Ranges are added, brought there, worked on, and fetched. Each lies at the same distance from a
// boundary of 256 bytes as on the host, and ranges that overlap lie in one. All are in one
// allocation: to bring each by itself takes minutes.
// Errors: std::runtime_error for what CUDA refuses.
class DeviceCopy {
 public:
  explicit DeviceCopy(cudaStream_t stream) : stream_(stream) {}
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  // Null or 0 bytes: nothing.
  void add(const void* begin, int64_t bytes);
  void bring();
  // Where this address of an added range is on the device; another one stays as it is.
  template <class T>
  T* at(T* address) const {
    return reinterpret_cast<T*>(moved(reinterpret_cast<uintptr_t>(address)));
  }
  // Behind the work that was issued.
  void fetch();
  // Errors: std::runtime_error for a launch that read or wrote between the ranges.
  void require_inside(const std::vector<testing::sim::LaunchRecord>& launches) const;

 private:
  struct Range {
    uintptr_t end = 0;
    uintptr_t offset = 0;  // in the allocation
  };
  uintptr_t moved(uintptr_t address) const;

  const cudaStream_t stream_;
  std::map<uintptr_t, Range> ranges_;  // by begin, apart from each other
  std::vector<std::byte> bytes_;       // of the allocation
  std::byte* device_ = nullptr;
};

}  // namespace fsdp::test
