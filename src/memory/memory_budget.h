// What the engines of a rank may hold together of its device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "memory/memory_meter.h"

namespace fsdp {

// The limit that engines have in common, 0: none, and the meter that keeps it, null without one. It
// ends with its last holder.
struct MemoryCap {
  MemoryCap(int64_t bytes, std::shared_ptr<MemoryMeter> by);
  ~MemoryCap();
  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;

  const int64_t limit;
  const std::shared_ptr<MemoryMeter> meter;  // shared with the blocks that it has counted
};

// One rank's, as long as its mesh in the job: its meter counts what earlier engines have left, too.
// Thread-safe.
class MemoryBudget {
 public:
  // The cap of the engines that live.
  // Errors: InvalidArgument for a negative limit, or while engines with another one live.
  std::shared_ptr<const MemoryCap> cap(int64_t limit);

 private:
  std::mutex mutex_;
  std::weak_ptr<const MemoryCap> cap_;
  std::shared_ptr<MemoryMeter> meter_;  // from the first limit on
};

}  // namespace fsdp
