// LibTorch's operators of the calling thread as work of its compute stream on the simulated GPU:
// what they read and write is told to it, and engine memory is open to them alone.
//
// An operator that gives the host a value makes the host wait, as on a GPU; it is counted with the
// host's other waits.
#pragma once

#include <ATen/record_function.h>

namespace fsdp::testing {

// While it lives, in the calling thread, which is bound to a stream (ComputeStreamOfThread).
class TorchOperatorsOfThread {
 public:
  TorchOperatorsOfThread();
  ~TorchOperatorsOfThread();
  TorchOperatorsOfThread(const TorchOperatorsOfThread&) = delete;
  TorchOperatorsOfThread& operator=(const TorchOperatorsOfThread&) = delete;

 private:
  const at::CallbackHandle handle_;
};

}  // namespace fsdp::testing
