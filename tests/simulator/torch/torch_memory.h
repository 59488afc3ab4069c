// LibTorch's memory on the simulated GPU: what its allocator for the CPU hands out to a rank's
// thread is memory of the device, of the stream that is the thread's then.
//
// As LibTorch's allocator for GPUs does, it hands a block out again on the same stream as soon as
// it is given back, since all work on it is there. So a block that is given back counts as written
// there: what another stream does with it must be over by then.
#pragma once

#include <memory>

namespace fsdp::testing {

// From now on for good, what LibTorch allocates asks here; elsewhere it is as ever. The library
// lays an allocator of its own over the one that it finds when an engine computes on the host: a
// program of which a rank computes on a simulated GPU after that calls this before main.
void take_allocator();

// Of the calling thread, which has a stream (ComputeStreamOfThread), while it lives. What it has
// handed out may outlive it, as plain memory.
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
