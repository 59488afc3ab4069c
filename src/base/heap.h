// What happens to large blocks that are freed: a policy of the whole process.
#pragma once

#include <cstddef>

namespace fsdp {

// Blocks that are freed go back to the system at once: a model is under construction, of which only
// shards stay.
void return_freed_blocks();

// Blocks are kept for the next step, which asks for the same ones ([Note: kept blocks] in
// block_heap.h): those of kept_block, and of malloc's those up to 32 MiB, glibc's limit. Returned
// at once, each activation is mapped and zeroed page by page, step after step: a third of a
// fine-tuning step on the CPU. What is free now goes back first.
void keep_freed_blocks();

// A block that is kept when it is freed; null where there is none: it is small, blocks are returned
// just now, or a sanitizer is to see each block. malloc has one then.
void* kept_block(size_t bytes);
// Whether it was a kept block, which is given back now.
bool give_kept_block(void* block);

}  // namespace fsdp
