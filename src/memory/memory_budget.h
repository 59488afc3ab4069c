// MemoryBudget: the device memory that the engines of a rank may hold together.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "memory/memory_meter.h"

namespace fsdp {

// A limit that engines share (0: none), and the meter that enforces it (null without a limit). It
// ends with its last holder.
struct MemoryCap {
  MemoryCap(int64_t bytes, std::shared_ptr<MemoryMeter> by);
  ~MemoryCap();
  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;

  const int64_t limit;
  const std::shared_ptr<MemoryMeter> meter;  // shared with the blocks that it has counted
};

// The budget of one rank. It lives as long as the rank's mesh, and its meter also counts memory
// that earlier engines left. Thread-safe.
class MemoryBudget {
 public:
  // Returns the cap of all living engines.
  // Errors: InvalidArgument for a negative limit, or while engines with another limit live.
  std::shared_ptr<const MemoryCap> cap(int64_t limit);

 private:
  std::mutex mutex_;
  std::weak_ptr<const MemoryCap> cap_;
  std::shared_ptr<MemoryMeter> meter_;  // from the first limit on
};

}  // namespace fsdp
