// The heap of one rank, which its peers have mapped. The heap begins with the staging areas. The
// blocks of allocate() follow.
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

// A heap in shared memory. Thread-safe. Shared by the communicators of this rank and by the buffers
// that were allocated from the heap.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  // Manages [base, base + bytes), which must be this rank's heap. `memory` must keep it mapped.
  SharedHeap(std::shared_ptr<const void> memory, std::byte* base, int64_t bytes);

  // Allocates zeroed memory, aligned to 64 bytes. The pages of large blocks return to the system
  // when the block is released. Errors: DeviceError, with the size, if no free range is large
  // enough.
  Buffer allocate(int64_t bytes);
  // Returns the offset of [data, data + bytes) in this heap. Empty if these bytes are not in the
  // heap.
  std::optional<uint64_t> offset_of(const void* data, int64_t bytes) const;
  // Returns the offset of a channel's staging area.
  static uint64_t staging_of(int channel) { return uint64_t{kStagingBytes} * channel; }

 private:
  RangeAllocator& ranges_for(int64_t bytes);
  void release(int64_t offset, int64_t bytes);

  std::shared_ptr<const void> memory_;  // keeps the mapping, shared with the rank's job
  std::byte* base_;
  int64_t bytes_;
  std::mutex mutex_;
  RangeAllocator small_;
  RangeAllocator large_;
};

}  // namespace fsdp
