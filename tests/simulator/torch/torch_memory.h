// LibTorch's memory on the simulated GPU: its CPU allocator returns device memory to a rank's
// thread, for the stream that is the thread's current one then.
//
// As LibTorch's GPU allocator does, it reuses a block on the same stream as soon as the block is
// freed, because all work on it is on that stream. So freeing a block counts as a write on that
// stream: work of other streams on the block must be over by then.
#pragma once

#include <memory>

namespace fsdp::testing {

// Installs the allocator for good: LibTorch's allocations ask it from now on; threads without
// memory of their own keep the earlier allocator. When an engine computes on the host, the library
// wraps the allocator that it finds. So a program that does that before a rank computes on a
// simulated GPU calls this before main.
void take_allocator();

// The memory of the calling thread, which has a stream (ComputeStreamOfThread), while the object
// lives. Its blocks may outlive it, as plain memory.
class TorchMemoryOfThread {
 public:
  TorchMemoryOfThread();
  ~TorchMemoryOfThread();
  TorchMemoryOfThread(const TorchMemoryOfThread&) = delete;
  TorchMemoryOfThread& operator=(const TorchMemoryOfThread&) = delete;

  class Blocks;

 private:
  const std::shared_ptr<Blocks> blocks_;  // shared with the blocks that are out
};

}  // namespace fsdp::testing
