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

// malloc's default threshold: smaller blocks gain little, and are many.
constexpr size_t kLeastBytes = 128 << 10;

std::atomic<bool> keeps_blocks = false;

// Returns the heap. It is never destroyed, as tensors may outlive all else. It has twice the
// addresses of the machine's memory, since free places between blocks need addresses, too.
BlockHeap& kept() {
  static auto* const heap = new BlockHeap(2 * static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                                          static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  return *heap;
}

// Guards mallopt. Under another malloc (a sanitizer's, jemalloc) glibc's own malloc is first used
// by these calls, and initialises itself without a lock.
std::mutex& policy_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

// Sets a fixed threshold. Otherwise glibc raises it to the largest block freed so far, and memory
// freed during the construction of a model would stay resident.
void return_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  keeps_blocks = false;
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

void keep_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  // First return what construction has freed: later limits would keep it.
  malloc_trim(0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // A sanitizer has to see each block.
  if (kIsSanitized) return;
  kept().release();
  keeps_blocks = true;
}

void* kept_block(size_t bytes) {
  return bytes >= kLeastBytes && keeps_blocks ? kept().take(bytes) : nullptr;
}

bool give_kept_block(void* block) {
  // The address decides: a block may be freed after the policy has changed.
  if (kIsSanitized || !kept().owns(block)) return false;
  kept().give(block);
  return true;
}

}  // namespace fsdp
