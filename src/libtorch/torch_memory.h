// LibTorch's memory on the host. Large blocks are kept for the next step ([Note: kept blocks] in
// block_heap.h). All blocks are counted by rank: a block is counted by the meter that is current in
// the thread that allocates it.
//
// [Note: counting allocator]
// A counting allocator is installed over LibTorch's own allocators for the CPU and for meta
// tensors. It is installed once per process and is never removed. If the thread has no current
// meter, the counting allocator only forwards the request. The counting allocator returns the
// blocks of the allocator below it unchanged, and stores the counts in a table by address. The
// table is necessary because oneDNN frees memory by its address alone, and may have allocated this
// memory before the counting allocator was installed. Freeing a block, in any thread, subtracts it
// from the meter that counted it. Meta tensors have no memory and no address; their bytes are
// counted nevertheless.
//
// Three kinds of memory are not counted: memory that threads without a meter allocate (OpenMP's
// workers, loaders), memory that operators allocate by malloc directly, and memory of other
// devices.
#pragma once

#include <memory>

#include "memory/memory_meter.h"

namespace fsdp::torch_memory {

// Installs the counting allocators over LibTorch's allocators. set_current_meter calls it. If the
// CPU allocator belongs to another library, that allocator still allocates all blocks, and the
// counting allocator counts them.
// Requires: no other code installs an allocator later (c10::SetAllocator). The blocks of such an
//   allocator would not be counted.
void install();

// Return and set the calling thread's meter. If the meter is null, memory that the thread allocates
// is not counted.
const std::shared_ptr<MemoryMeter>& current_meter();
void set_current_meter(std::shared_ptr<MemoryMeter> meter);

// A scope in which `meter` is the calling thread's meter. If `meter` is null, nothing is counted in
// the scope.
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
