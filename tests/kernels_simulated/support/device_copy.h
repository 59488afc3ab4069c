// Host memory that a kernel call names, as it lies on the simulated GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace fsdp::test {

// Ranges are added, brought there, worked on, and fetched. Each lies at the same distance from a
// boundary of 256 bytes as on the host, ranges that overlap lie in one, and what is before and
// behind is nobody's. Errors: std::runtime_error for what CUDA refuses, and for bytes before a
// range that work has changed.
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

 private:
  struct Range {
    uintptr_t end = 0;
    std::byte* device = nullptr;  // of the bytes before the range, so at a boundary
    int64_t before = 0;
  };
  uintptr_t moved(uintptr_t address) const;

  const cudaStream_t stream_;
  std::map<uintptr_t, Range> ranges_;  // by begin, apart from each other
};

}  // namespace fsdp::test
