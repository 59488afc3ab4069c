// LibTorch's memory on the host: large blocks are kept for the next step ([Note: kept blocks] in
// block_heap.h), and all are counted by rank: what the allocator hands out in a thread belongs to
// the meter that is current there.
//
// [Note: counting allocator]
// Over LibTorch's own allocators for the CPU and for meta tensors lies one that counts, once a
// process and for good. Where no meter is current it hands the request on. Blocks are the
// allocator's below, untouched: what was counted is in a table, by address, because oneDNN gives
// memory back by its address alone, and may have got it before. A block is given back to the meter
// that counted it, in whatever thread it ends. Tensors on meta have no memory and no address, as
// ever; their bytes are counted all the same.
//
// Not counted: threads without a meter (OpenMP's workers, loaders), what operators take from malloc
// itself, and other devices' memory.
#pragma once

#include <memory>

#include "memory/memory_meter.h"

namespace fsdp::torch_memory {

// Puts the allocators over LibTorch's; whoever sets a meter need not ask for it. An allocator for
// the CPU that is not LibTorch's own serves all blocks itself, and is counted.
// Requires, for the first call of a process: no allocator that somebody puts over these later
//   (c10::SetAllocator) needs to be seen by them.
void install();

// Of the calling thread; null: nothing is counted there.
const std::shared_ptr<MemoryMeter>& current_meter();
void set_current_meter(std::shared_ptr<MemoryMeter> meter);

// `meter` is the calling thread's while this lives; null: nothing is counted.
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
