// MemoryBudget limits the device memory that all engines of a rank hold together.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "memory/memory_meter.h"

namespace fsdp {

// A limit that engines share, and the meter that enforces the limit. A `limit` of 0 means no limit,
// and `meter` is null then. The limit ends when the last holder releases the cap.
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
  // Returns the cap of all existing engines. Errors: InvalidArgument if `limit` is negative, or if
  // engines with another limit exist.
  std::shared_ptr<const MemoryCap> cap(int64_t limit);

 private:
  std::mutex mutex_;
  std::weak_ptr<const MemoryCap> cap_;
  std::shared_ptr<MemoryMeter> meter_;  // from the first limit on
};

}  // namespace fsdp
