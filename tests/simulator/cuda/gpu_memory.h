// The memory of simulated GPUs, and the host memory that they may access.
//
// Device memory is guarded: the host faults if it accesses it. It is filled with 0xcb, and
// allocated in whole pages with a gap behind them. Freed memory is never reused, so that a use
// after free, or an access past the end, hits no other allocation.
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

  // Errors: ptx::Objection if it is neither device memory nor pinned.
  void rename(const void* begin, const std::string& name);

  // Returns null if the device does not have enough left.
  void* allocate(int device, int64_t bytes);
  void* allocate_pinned(int64_t bytes);
  // Returns zeroed memory, in which only accessed pages take host memory. It is not guarded, and
  // does not count against the device's memory.
  void* allocate_sparse(int device, int64_t bytes);
  // Adds memory with another owner, as pinned, until it is freed.
  void add_pinned(void* begin, int64_t bytes, const std::string& name);
  // Returns false if no allocation of the kind begins there.
  bool free(void* begin);
  bool free_pinned(void* begin);

  // Returns the names of allocations that were not freed, except sparse ones and those with another
  // owner.
  std::vector<std::string> left() const;

  int64_t bytes_each() const { return bytes_each_; }
  int64_t bytes_left(int device) const { return left_[static_cast<size_t>(device)]; }
  // Returns the device of existing device memory; -1: none.
  int device_of(const void* begin) const;
  // Returns the kind of memory; freed memory keeps its kind.
  Place place_of(const void* begin) const;
  // Returns the memory that the device's kernels can access: its own and all pinned memory.
  ptx::DeviceMemory& of(int device) { return seen_[static_cast<size_t>(device)]; }

 private:
  struct Block {
    int device = 0;
    Buffer memory;
    int64_t bytes = 0;  // bytes without the gap
    int64_t taken = 0;  // bytes taken off the device's memory
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
