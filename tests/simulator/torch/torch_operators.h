// Treats LibTorch's operators of the calling thread as work of its compute stream on the simulated
// GPU: they report their reads and writes, and only they may access engine memory.
//
// An operator that returns a value to the host makes the host wait, as on a GPU; this counts as a
// host wait.
#pragma once

#include <ATen/record_function.h>

namespace fsdp::testing {

// A scope in which this applies to the calling thread. Requires: the thread is bound to a stream
// (ComputeStreamOfThread).
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
