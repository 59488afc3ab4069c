// Forwards of units chosen by policy. The begin and the end of such a forward are derived from the
// operators that touch the units' parameters. (The forward of an fsdp::Unit is reported by its
// caller, unit_call.cpp.) The rule is
// [Note: open-ended calls] in backward_scheduler.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "libtorch/touch_trap.h"
#include "plan/backward_scheduler.h"

namespace fsdp {
class ModuleStates;
}

namespace fsdp::touched_units {

// The open-ended calls of this thread that run around a recomputed function: they began before its
// first run and end after it. Before the function's node runs in backward, fire() fires the calls
// among them that backward will still reach: it unshards the units of these calls (see [Note:
// closing] in backward_scheduler.h).
class CallsAround {
 public:
  // begin() is called before the function's first run, end() after it, and fire() in backward
  // before the function's node runs.
  void begin();
  void end();
  void fire() const;

 private:
  std::shared_ptr<BackwardScheduler> scheduler_;  // null if `calls_` is empty
  std::vector<std::weak_ptr<Call>> calls_;
};

// Hooks the outputs of a recomputed function as outputs of open-ended calls. Does this for each
// call that still runs after the function's first run, if the first run touched the call's unit
// (`ran`) and the unit has several layers. The layers of such a unit may be recomputed one by one.
// With these hooks the layers are one call in backward too, even if a rank leaves out some layers.
void hook_recomputed(const std::vector<at::Tensor>& outputs, const ModuleStates& ran);

// Arms the trap (touch_trap.h). Must be called before a model with units chosen by policy is
// sharded.
// Errors: StateError if the trap does not see operators.
void arm();

// A scope in which operators of this thread, in the current graph task, belong to a forward that
// runs again inside a backward. The scope also covers operators inside a custom Function, where
// grad mode is off.
class ForwardAgain {
 public:
  ForwardAgain();
  ~ForwardAgain();
  ForwardAgain(const ForwardAgain&) = delete;
  ForwardAgain& operator=(const ForwardAgain&) = delete;

 private:
  const int around_;
};

}  // namespace fsdp::touched_units
