#include "base/heap.h"

#include <malloc.h>

namespace fsdp {

// Left alone, glibc raises its threshold to the largest block freed so far: what the construction
// of a model frees would stay resident.
void return_freed_blocks() { mallopt(M_MMAP_THRESHOLD, 256 << 10); }

void keep_freed_blocks() {
  malloc_trim(0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace fsdp
