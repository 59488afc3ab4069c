#include "base/heap.h"

#include <malloc.h>

#include <mutex>

namespace fsdp {
namespace {

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
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

void keep_freed_blocks() {
  const std::lock_guard lock(policy_mutex());
  malloc_trim(0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace fsdp
