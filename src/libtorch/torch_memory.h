// LibTorch's memory on the host. Large blocks are kept for the next step ([Note: kept blocks] in
// block_heap.h), and all blocks are counted by rank: a block belongs to the meter that is current
// in the thread that allocates it.
//
// [Note: counting allocator]
// An allocator that counts is installed over LibTorch's own allocators for the CPU and for meta
// tensors, once a process and for good. Without a current meter it passes the request on. The
// blocks are those of the allocator below, unchanged. A table by address holds the counts, because
// oneDNN frees memory by its address alone, and may have allocated it before the install. A block
// is returned to the meter that counted it, in whatever thread it is freed. Meta tensors have no
// memory and no address; their bytes are counted all the same.
//
// Not counted are threads without a meter (OpenMP's workers, loaders), memory that operators get
// from malloc directly, and other devices' memory.
#pragma once

#include <memory>

#include "memory/memory_meter.h"

namespace fsdp::torch_memory {

// Installs the allocators over LibTorch's; set_current_meter calls it. An allocator for the CPU
// that is not LibTorch's own serves all blocks itself, and is counted.
// Requires, for the first call of a process: an allocator that other code installs over these later
// (c10::SetAllocator) does not need to be seen by them.
void install();

// Return and set the calling thread's meter; null: nothing is counted there.
const std::shared_ptr<MemoryMeter>& current_meter();
void set_current_meter(std::shared_ptr<MemoryMeter> meter);

// A scope in which `meter` is the calling thread's; null: nothing is counted.
class MeterScope {
 public:
  explicit MeterScope(std::shared_ptr<MemoryMeter> meter);
  ~MeterScope();
  MeterScope(const MeterScope&) = delete;
  MeterScope& operator=(const MeterScope&) = delete;

 private:
  std::shared_ptr<MemoryMeter> before_;
};

}  // namespace fsdp::torch_memory
