// What a thread's calls of LibTorch are while it plans.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "libtorch/default_device.h"
#include "meta/operator_probe.h"

namespace fsdp {

// While it lives, in the calling thread: factories make tensors without memory where nobody names a
// device; a tensor of the host that meets such ones goes with them, as it would be computed with on
// the CPU; and what takes such a tensor to the CPU leaves it where it is, where `cpu_is_planned`.
// Operators without a kernel for them run on zeros (operator_probe.h).
class MetaMode {
 public:
  explicit MetaMode(bool cpu_is_planned);
  // While it lives, who asks for the memory of what a factory made (data_ptr, accessor) gets an
  // exception that says what to do, and not an address that ends the process.
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
