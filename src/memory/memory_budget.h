// MemoryBudget limits the device memory that all engines of a rank hold together.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "memory/memory_meter.h"

namespace fsdp {

// A limit that the engines of a rank share, and the meter that enforces the limit. If `limit` is 0,
// there is no limit, and `meter` is null. The limit ends when the last engine releases the cap.
struct MemoryCap {
  MemoryCap(int64_t bytes, std::shared_ptr<MemoryMeter> by);
  ~MemoryCap();
  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;

  const int64_t limit;
  const std::shared_ptr<MemoryMeter> meter;  // shared with the blocks that it has counted
};

// The budget of one rank. It exists as long as the rank's mesh, so its meter also counts memory
// that destroyed engines have not freed. Thread-safe.
class MemoryBudget {
 public:
  // Returns the cap that all existing engines of the rank share. Makes the cap if there is none.
  // Errors: InvalidArgument if `limit` is negative, or if engines with another limit exist.
  std::shared_ptr<const MemoryCap> cap(int64_t limit);

 private:
  std::mutex mutex_;
  std::weak_ptr<const MemoryCap> cap_;
  std::shared_ptr<MemoryMeter> meter_;  // null before the first limit is set
};

}  // namespace fsdp
