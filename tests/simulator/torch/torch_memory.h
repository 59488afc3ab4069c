// LibTorch's memory on the simulated GPU. In the thread of a rank, LibTorch's CPU allocator returns
// device memory for the stream that is current in the thread.
//
// As LibTorch's GPU allocator does, it reuses a block on the same stream as soon as the block is
// freed, because all work on the block is on that stream. So freeing a block counts as a write on
// that stream. Work of other streams on the block must have ended by then.
#pragma once

#include <memory>

namespace fsdp::testing {

// Installs the allocator permanently. From now on LibTorch allocates through it. Threads without
// memory of their own continue to use the earlier allocator.
// When an engine computes on the host, the library wraps the allocator that it finds. So if this
// happens before a rank computes on a simulated GPU, the program must call this function before
// main.
void take_allocator();

// The memory of the calling thread while the object exists. The thread must have a stream
// (ComputeStreamOfThread). Blocks may outlive the object; then they are plain memory.
class TorchMemoryOfThread {
 public:
  TorchMemoryOfThread();
  ~TorchMemoryOfThread();
  TorchMemoryOfThread(const TorchMemoryOfThread&) = delete;
  TorchMemoryOfThread& operator=(const TorchMemoryOfThread&) = delete;

  class Blocks;

 private:
  const std::shared_ptr<Blocks> blocks_;  // shared with the allocated blocks
};

}  // namespace fsdp::testing
