#include "base/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "base/block_heap.h"

namespace fsdp {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// malloc's default mmap threshold. Smaller blocks gain little from this heap, and there are many of
// them.
constexpr size_t kLeastBytes = 128 << 10;

std::atomic<bool> keeps_blocks = false;

// Returns the heap. The heap is never destroyed, because tensors may outlive all other objects. Its
// address range is twice as large as the machine's memory, because free ranges between blocks need
// addresses, too.
BlockHeap& kept() {
  static auto* const heap = new BlockHeap(2 * static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                                          static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  return *heap;
}

// Guards mallopt. If the program uses another malloc (a sanitizer's, jemalloc), mallopt is the
// first use of glibc's malloc, which then initialises itself without a lock.
std::mutex& policy_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

// Sets a fixed mmap threshold. By default glibc raises the threshold to the size of the largest
// freed block, and memory that is freed while a model is constructed would stay resident.
void return_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  keeps_blocks = false;
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

void keep_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  // First release the memory that was freed during construction, because malloc would keep it under
  // the limits below.
  malloc_trim(0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // Under a sanitizer this heap is not used, because a sanitizer finds errors only in blocks that
  // malloc allocates.
  if (kIsSanitized) return;
  kept().release();
  keeps_blocks = true;
}

void* kept_block(size_t bytes) {
  return bytes >= kLeastBytes && keeps_blocks ? kept().take(bytes) : nullptr;
}

bool give_kept_block(void* block) {
  // Check the block's address, not the policy, because the policy may have changed since the block
  // was allocated.
  if (kIsSanitized || !kept().owns(block)) return false;
  kept().give(block);
  return true;
}

}  // namespace fsdp
