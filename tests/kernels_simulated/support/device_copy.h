// A copy of the host memory that a kernel call uses, on the GPU of a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Ranges of host memory are added, copied to the GPU, processed there, and copied back. On the GPU,
// each range has the same distance from a boundary of 256 bytes as on the host. Overlapping ranges
// are merged. All ranges share one allocation, because single copies would take minutes.
class DeviceCopy {
 public:
  explicit DeviceCopy(Stream& stream) : stream_(stream) {}
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  // Adds a range. Does nothing if `begin` is null or `bytes` is 0.
  void add(const void* begin, int64_t bytes);
  void bring();
  // Returns the device's address for a host address in an added range. Returns any other address
  // unchanged.
  template <class T>
  T* at(T* address) const {
    return reinterpret_cast<T*>(moved(reinterpret_cast<uintptr_t>(address)));
  }
  // Waits for the issued work and copies the ranges back.
  // Errors: std::runtime_error if the work wrote outside the ranges.
  void fetch();
  // Errors: std::runtime_error if a launch read or wrote outside the ranges.
  void require_inside(const std::vector<testing::sim::LaunchRecord>& launches) const;

 private:
  struct Range {
    uintptr_t end = 0;
    uintptr_t offset = 0;  // in the allocation
  };
  uintptr_t moved(uintptr_t address) const;
  void require_gaps_untouched() const;

  Stream& stream_;
  std::map<uintptr_t, Range> ranges_;  // by begin; they do not overlap
  int64_t bytes_ = 0;                  // bytes of the allocation
  Buffer host_, device_;
};

}  // namespace fsdp::test
