// Host memory that a kernel call names, as it lies on the GPU of a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Ranges are added, brought there, worked on, and fetched. Each lies at the same distance from a
// boundary of 256 bytes as on the host, and ranges that overlap lie in one. All are in one
// allocation: to bring each by itself takes minutes.
class DeviceCopy {
 public:
  explicit DeviceCopy(Stream& stream) : stream_(stream) {}
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
  // Errors: std::runtime_error where that wrote between the ranges.
  void fetch();
  // Errors: std::runtime_error for a launch that read or wrote between the ranges.
  void require_inside(const std::vector<testing::sim::LaunchRecord>& launches) const;

 private:
  struct Range {
    uintptr_t end = 0;
    uintptr_t offset = 0;  // in the allocation
  };
  uintptr_t moved(uintptr_t address) const;
  void require_gaps_untouched() const;

  Stream& stream_;
  std::map<uintptr_t, Range> ranges_;  // by begin, apart from each other
  int64_t bytes_ = 0;                  // of the allocation
  Buffer host_, device_;
};

}  // namespace fsdp::test
