// The policy for large blocks that are freed, one for the whole process.
#pragma once

#include <cstddef>

namespace fsdp {

// Makes freed blocks return to the system at once: a model is under construction, of which only
// shards will stay.
void return_freed_blocks();

// Keeps freed blocks for the next step, which allocates the same ones ([Note: kept blocks] in
// block_heap.h): those of kept_block, and malloc's up to 32 MiB, glibc's limit. If freed blocks
// returned at once, each activation would be mapped and zeroed page by page in every step: a
// third of a fine-tuning step on the CPU. Memory that is free now returns to the system first.
void keep_freed_blocks();

// Allocates a block that is kept when it is freed. Null if the block is small, if freed blocks
// return at once, or under a sanitizer, which has to see each block: malloc serves it then.
void* kept_block(size_t bytes);
// Frees `block` and returns true if it is a kept block; else returns false.
bool give_kept_block(void* block);

}  // namespace fsdp
