// Changes how LibTorch's operators behave in a thread that plans.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "libtorch/default_device.h"
#include "meta/operator_probe.h"

namespace fsdp {

// Observes the operators of a thread that plans. It is not called for operators inside others.
class OperatorWatch {
 public:
  virtual ~OperatorWatch() = default;
  // `stack` ends with the arguments.
  virtual void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) = 0;
  // `stack` ends with the results.
  virtual void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) = 0;
};

// A mode of the calling thread. It is active while the object exists.
// - Factories without a device argument make meta tensors.
// - If an operator gets meta tensors and host tensors, the host tensors are replaced by meta
//   tensors, because in the planned run all of them are on one device.
// - If `cpu_is_planned`, a move of a meta tensor to the CPU leaves it on meta.
// - Operators without a meta kernel run on zeros (operator_probe.h).
class MetaMode {
 public:
  // `watch` observes the operators; null: nothing does. Requires: it outlives the mode.
  explicit MetaMode(bool cpu_is_planned, OperatorWatch* watch = nullptr);
  // A guard for tensors that a factory makes while the guard exists. An access to the memory of
  // such a tensor (data_ptr, accessor) throws an error that names a remedy. Without the guard the
  // access would return an invalid address.
  class Guard {
   public:
    Guard();
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
  };
  ~MetaMode();
  MetaMode(const MetaMode&) = delete;
  MetaMode& operator=(const MetaMode&) = delete;

  const std::vector<std::string>& probed() const { return probes_.run(); }

 private:
  DefaultDevice factories_;
  OperatorProbes probes_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace fsdp
