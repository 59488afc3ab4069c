// What glibc's malloc does with large blocks: a policy of the whole process.
#pragma once

namespace fsdp {

// Blocks that are freed go back to the system at once: a model is under construction, of which only
// shards stay.
void return_freed_blocks();

// Blocks up to 32 MiB (glibc's limit) are kept for the next step, which asks for the same ones.
// Returned at once, each activation is mapped and zeroed page by page, step after step: a third of
// a fine-tuning step on the CPU. What is free now goes back first.
void keep_freed_blocks();

}  // namespace fsdp
