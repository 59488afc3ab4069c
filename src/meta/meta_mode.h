// Changes the operators of LibTorch that a thread calls while it plans.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "libtorch/default_device.h"
#include "meta/operator_probe.h"

namespace fsdp {

// A mode of the calling thread, active while the object lives:
// - Factories without a device argument make meta tensors.
// - An operator with meta tensors and host tensors gets the host tensors as meta ones, because in
//   the planned run all are on one device.
// - If `cpu_is_planned`, a move of a meta tensor to the CPU leaves it on meta.
// - Operators without a meta kernel run on zeros (operator_probe.h).
class MetaMode {
 public:
  explicit MetaMode(bool cpu_is_planned);
  // A guard: while it lives, an access to the memory of a tensor that a factory made (data_ptr,
  // accessor) throws with a remedy, instead of returning an address that ends the process.
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
