// Forwards of units by policy, derived from the operators that touch their parameters. A fsdp::Unit
// has a caller that reports them (unit_call.cpp). The rule is [Note: open-ended calls] in
// backward_scheduler.h.
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

// The open-ended calls that run in this thread around a function, from before its first run until
// after it. Before the function's node runs, fire() fires those that backward will reach.
class CallsAround {
 public:
  // Called before the function's first run, after it, and in backward before the function's node
  // runs.
  void begin();
  void end();
  void fire() const;

 private:
  std::shared_ptr<BackwardScheduler> clock_;  // null: no such calls
  std::vector<std::weak_ptr<Call>> calls_;
};

// Hooks the outputs of a recomputed function as outputs of the calls that its first run touched
// (`ran`) and that still run at its end. It does so for units of several layers only: layers that
// are recomputed one by one are then one call in backward, too, whichever of them a rank leaves
// out.
void hook_recomputed(const std::vector<at::Tensor>& outputs, const ModuleStates& ran);

// Arms the trap. Called before a model with such units is sharded.
// Errors: StateError if the trap does not see operators.
void arm();

// A scope in which operators of this thread, in the current graph task, are part of a forward that
// runs again inside a backward; also in a custom Function, where grad mode is off.
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
