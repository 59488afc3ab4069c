// LibTorch's memory on the host counted by rank: what its allocator hands out in a thread belongs
// to the meter that is current there.
//
// [Note: counting allocator]
// Over LibTorch's own allocators for the CPU and for meta tensors lies one that counts, once a
// process and from the first meter on that a thread is given; where no meter is current it hands
// the request on. Blocks are the allocator's below, untouched: what was counted is in a table, by
// address, because oneDNN gives memory back by its address alone, and may have got it before. A
// block is given back to the meter that counted it, in whatever thread it ends. Tensors on meta
// have no memory and no address, as ever; their bytes are counted all the same.
//
// Not counted: threads without a meter (OpenMP's workers, loaders), what operators take from malloc
// itself, and other devices' memory.
#pragma once

#include <memory>

#include "runtime/memory_meter.h"

namespace fsdp::torch_memory {

// Of the calling thread; null: nothing is counted there.
const std::shared_ptr<MemoryMeter>& current_meter();
// Requires, for the first meter of a process: no allocator that somebody puts over this one later
//   (c10::SetAllocator) needs to be seen by it.
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
