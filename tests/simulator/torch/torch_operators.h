// Treats LibTorch's operators in the calling thread as work of its compute stream on the simulated
// GPU. Operators report their reads and writes, and only operators may access engine memory.
//
// An operator that returns a value to the host makes the host wait, as on a GPU. This counts as a
// wait of the host.
#pragma once

#include <ATen/record_function.h>

namespace fsdp::testing {

// A scope in which the calling thread's operators are treated so. Requires: the thread is bound to
// a stream (ComputeStreamOfThread).
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
