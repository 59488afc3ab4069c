// A copy, on the GPU of a test, of host memory that a kernel call uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Ranges are added, copied to the GPU, worked on, and fetched. Each has the same distance from a
// boundary of 256 bytes as on the host; overlapping ranges are merged. All are in one allocation:
// copying each by itself takes minutes.
class DeviceCopy {
 public:
  explicit DeviceCopy(Stream& stream) : stream_(stream) {}
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  // Adds a range; null or 0 bytes add nothing.
  void add(const void* begin, int64_t bytes);
  void bring();
  // Returns the device's address for an address in an added range; any other address unchanged.
  template <class T>
  T* at(T* address) const {
    return reinterpret_cast<T*>(moved(reinterpret_cast<uintptr_t>(address)));
  }
  // Waits for the issued work and copies the ranges back.
  // Errors: std::runtime_error if the work wrote between the ranges.
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
  int64_t bytes_ = 0;                  // bytes of the allocation
  Buffer host_, device_;
};

}  // namespace fsdp::test
