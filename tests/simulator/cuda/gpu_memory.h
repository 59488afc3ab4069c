// The memory of simulated GPUs, and the host memory that they may work on.
//
// Device memory is guarded: the host that touches it faults. It is filled with 0xcb, in whole pages
// with a gap behind them, and what was freed is never handed out again, so that a use after free
// and a step over the end meet nobody's bytes.
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

  // Errors: ptx::Objection if it is no memory of a device, nor pinned.
  void rename(const void* begin, const std::string& name);

  // Null: the device has not so much left.
  void* allocate(int device, int64_t bytes);
  void* allocate_pinned(int64_t bytes);
  // Zeros, of which only what is touched takes memory. It is not guarded, nor taken off what the
  // device has.
  void* allocate_sparse(int device, int64_t bytes);
  // Memory that somebody else owns, as pinned, until it is freed.
  void add_pinned(void* begin, int64_t bytes, const std::string& name);
  // False: no allocation of the kind begins there.
  bool free(void* begin);
  bool free_pinned(void* begin);

  // What was allocated and not freed, by name; not what is sparse, nor somebody else's.
  std::vector<std::string> left() const;

  int64_t bytes_each() const { return bytes_each_; }
  int64_t bytes_left(int device) const { return left_[static_cast<size_t>(device)]; }
  // Of device memory that is there; -1: of none.
  int device_of(const void* begin) const;
  // What was freed is where it was.
  Place place_of(const void* begin) const;
  // As the device's kernels see it: its own memory and all that is pinned.
  ptx::DeviceMemory& of(int device) { return seen_[static_cast<size_t>(device)]; }

 private:
  struct Block {
    int device = 0;
    Buffer memory;
    int64_t bytes = 0;  // without the gap
    int64_t taken = 0;  // of what the device has
    bool freed = false;
    std::string name{};  // empty: nobody has to free it
  };

  const int64_t bytes_each_;
  int made_ = 0;
  std::vector<int64_t> left_;
  std::vector<ptx::DeviceMemory> seen_;
  std::map<uintptr_t, Block> blocks_;  // by begin
  std::map<uintptr_t, Block> pinned_;
};

}  // namespace fsdp::testing::sim
