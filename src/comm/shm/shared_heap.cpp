#include "comm/shm/shared_heap.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr int64_t kCacheLine = 64;
// Small blocks have a separate range. Among large blocks they would keep pages in use and leave
// gaps that are not whole pages.
constexpr int64_t kSmallBegin = kChannels * kStagingBytes;
constexpr int64_t kSmallEnd = kSmallBegin + (256 << 20);

}  // namespace

SharedHeap::SharedHeap(std::shared_ptr<const void> memory, std::byte* base, int64_t bytes)
    : memory_(std::move(memory)),
      base_(base),
      bytes_(bytes),
      small_(kSmallBegin, kSmallEnd, kCacheLine),
      large_(kSmallEnd, bytes / kPageBytes * kPageBytes, kPageBytes) {}

RangeAllocator& SharedHeap::ranges_for(int64_t bytes) {
  return bytes >= kLargeBlockBytes ? large_ : small_;
}

Buffer SharedHeap::allocate(int64_t bytes) {
  if (bytes == 0) return {};
  std::optional<int64_t> offset;
  {
    const std::lock_guard lock(mutex_);
    offset = ranges_for(bytes).take(bytes);
  }
  if (!offset) {
    throw DeviceError(
        {.what = fmt::format("out of shared memory: cannot allocate {}", format_bytes(bytes)),
         .hint = "use more ranks, smaller units or a smaller batch"});
  }
  // Large blocks need no zeroing. Their pages were never touched, or were removed when they were
  // last released.
  if (bytes < kLargeBlockBytes) std::memset(base_ + *offset, 0, bytes);
  // Each buffer keeps the heap, and thereby the mapping, alive.
  return {base_ + *offset, bytes,
          [heap = shared_from_this(), at = *offset, bytes](void*) { heap->release(at, bytes); }};
}

void SharedHeap::release(int64_t offset, int64_t bytes) {
  if (bytes >= kLargeBlockBytes) {
    const int64_t pages = round_up(bytes, kPageBytes);
    // MADV_REMOVE frees the pages for all processes. If this fails, the pages are zeroed instead.
    if (madvise(base_ + offset, pages, MADV_REMOVE) != 0) std::memset(base_ + offset, 0, pages);
  }
  // The range is freed last, so that no other thread can allocate it before it is zeroed.
  const std::lock_guard lock(mutex_);
  ranges_for(bytes).give_back(offset, bytes);
}

std::optional<uint64_t> SharedHeap::offset_of(const void* data, int64_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  if (at < base_ || at + bytes > base_ + bytes_) return std::nullopt;
  return static_cast<uint64_t>(at - base_);
}

}  // namespace fsdp
