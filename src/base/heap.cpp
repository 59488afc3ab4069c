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

// As malloc left alone: smaller ones have little to lose, and are many.
constexpr size_t kLeastBytes = 128 << 10;

std::atomic<bool> keeps_blocks = false;

// For good: tensors may outlive all else. Twice what can be memory at all, for places between
// blocks.
BlockHeap& kept() {
  static auto* const heap = new BlockHeap(2 * static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                                          static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  return *heap;
}

// Where another malloc serves the program (a sanitizer's, jemalloc) these calls are the first that
// glibc's own sees, and it sets itself up without a lock.
std::mutex& policy_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

// Left alone, glibc raises its threshold to the largest block freed so far: what the construction
// of a model frees would stay resident.
void return_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  keeps_blocks = false;
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

void keep_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  malloc_trim(0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (kIsSanitized) return;
  kept().release();
  keeps_blocks = true;
}

void* kept_block(size_t bytes) {
  return bytes >= kLeastBytes && keeps_blocks ? kept().take(bytes) : nullptr;
}

bool give_kept_block(void* block) {
  if (kIsSanitized || !kept().owns(block)) return false;
  kept().give(block);
  return true;
}

}  // namespace fsdp
