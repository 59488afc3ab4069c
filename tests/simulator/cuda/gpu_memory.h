// The memory of simulated GPUs, and the host memory that they may access.
//
// Device memory is guarded: if the host accesses it, the host faults. It is filled with 0xcb, and
// allocated in whole pages with a gap after each allocation. Freed memory is never reused. So an
// access after a free or past the end does not hit another allocation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "simulator/ptx/device_memory.h"

namespace fsdp::testing::sim {

enum class Place : uint8_t { kDevice, kPinned, kPageable };

// Used by one thread at a time.
class GpuMemory {
 public:
  GpuMemory(int devices, int64_t bytes_each);

  // Errors: ptx::Objection if `begin` is in neither device memory nor pinned memory.
  void rename(const void* begin, const std::string& name);

  // Returns null if the device does not have enough free memory.
  void* allocate(int device, int64_t bytes);
  void* allocate_pinned(int64_t bytes);
  // Returns zeroed memory. Only pages that are accessed use host memory. It is not guarded, and
  // does not count as used memory of the device.
  void* allocate_sparse(int device, int64_t bytes);
  // Adds memory that the simulation does not own. It counts as pinned until free_pinned is called.
  void add_pinned(void* begin, int64_t bytes, const std::string& name);
  // Return false if no allocation of this kind begins at `begin`.
  bool free(void* begin);
  bool free_pinned(void* begin);

  // Returns the names of allocations that were not freed. Sparse memory and memory of other owners
  // are not included.
  std::vector<std::string> left() const;

  int64_t bytes_each() const { return bytes_each_; }
  int64_t bytes_left(int device) const { return left_[static_cast<size_t>(device)]; }
  // Returns the device of existing device memory, or -1 for any other address.
  int device_of(const void* begin) const;
  // Returns the kind of memory. Freed memory keeps its kind.
  Place place_of(const void* begin) const;
  // Returns the memory that kernels of the device can access: the device's own memory and all
  // pinned memory.
  ptx::DeviceMemory& of(int device) { return seen_[static_cast<size_t>(device)]; }

 private:
  struct Block {
    int device = 0;
    Buffer memory;
    int64_t bytes = 0;  // size without the gap
    int64_t taken = 0;  // bytes subtracted from the device's memory
    bool freed = false;
    std::string name{};  // empty: the caller need not free it
  };

  const int64_t bytes_each_;
  int made_ = 0;
  std::vector<int64_t> left_;
  std::vector<ptx::DeviceMemory> seen_;
  std::map<uintptr_t, Block> blocks_;  // by begin
  std::map<uintptr_t, Block> pinned_;
};

}  // namespace fsdp::testing::sim
