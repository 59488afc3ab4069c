// The heap of one rank, which its peers have mapped: staging areas first, then what allocate()
// serves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/job/control_segment.h"
#include "comm/ranks_view.h"
#include "comm/shm/range_allocator.h"
#include "runtime/buffer.h"

namespace fsdp {

// Thread-safe. Shared by the communicators of its rank and the buffers that came from it.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  // Requires: `memory` keeps [base, base + bytes) mapped, which is this rank's heap.
  SharedHeap(std::shared_ptr<const void> memory, std::byte* base, int64_t bytes);

  // Zeroed, aligned to 64 bytes. Large blocks go back to the system when released.
  // Errors: DeviceError with the size when the heap has no such range left.
  Buffer allocate(int64_t bytes);
  // The offset of these bytes, if they lie in this heap.
  std::optional<uint64_t> offset_of(const void* data, int64_t bytes) const;
  static uint64_t staging_of(int channel) { return uint64_t{kStagingBytes} * channel; }

 private:
  RangeAllocator& ranges_for(int64_t bytes);
  void release(int64_t offset, int64_t bytes);

  std::shared_ptr<const void> memory_;  // the mapping, shared with the rank's job
  std::byte* base_;
  int64_t bytes_;
  std::mutex mutex_;
  RangeAllocator small_;
  RangeAllocator large_;
};

}  // namespace fsdp
