// Decides for the whole process if large freed blocks return to the system or are kept.
#pragma once

#include <cstddef>

namespace fsdp {

// Makes freed blocks return to the system at once. Call this function before a model is
// constructed, because afterwards only the shards stay allocated.
void return_freed_blocks();

// Keeps freed blocks for the next step, which allocates the same blocks ([Note: kept blocks] in
// block_heap.h). The blocks of kept_block are kept, and malloc's blocks up to 32 MiB (glibc's
// limit). Without this, the system would map and zero the pages of each activation again in every
// step, which takes a third of the time of a fine-tuning step on the CPU. Memory that is free when
// this function is called returns to the system.
void keep_freed_blocks();

// Allocates a block that is kept when it is freed. Returns null if the block is small, if freed
// blocks return to the system at once, or under a sanitizer, because a sanitizer checks only
// malloc's blocks. The caller must then use malloc.
void* kept_block(size_t bytes);
// Frees `block` and returns true if it is a kept block. Returns false for any other block.
bool give_kept_block(void* block);

}  // namespace fsdp
