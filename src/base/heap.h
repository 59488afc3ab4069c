// Sets the policy for large freed blocks, for the whole process.
#pragma once

#include <cstddef>

namespace fsdp {

// Makes freed blocks return to the system at once. Use it while a model is constructed: only the
// shards stay allocated afterwards.
void return_freed_blocks();

// Keeps freed blocks for the next step, which allocates the same blocks ([Note: kept blocks] in
// block_heap.h). Kept are the blocks of kept_block, and malloc's blocks up to 32 MiB, which is
// glibc's limit. If freed blocks returned at once, the system would map and zero each activation
// page by page in every step. This would take a third of the time of a fine-tuning step on the CPU.
// Memory that is free at the time of the call is first returned to the system.
void keep_freed_blocks();

// Allocates a block that is kept when it is freed. Returns null if the block is small, if freed
// blocks return at once, or under a sanitizer, which must see each block. The caller then uses
// malloc.
void* kept_block(size_t bytes);
// Frees `block` and returns true if it is a kept block. Otherwise returns false.
bool give_kept_block(void* block);

}  // namespace fsdp
