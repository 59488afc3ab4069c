// Units by policy: their forwards are where operators touch their parameters. What a fsdp::Unit is
// told by its caller (unit_call.cpp) is concluded here from touches; backward_scheduler.h, [Note:
// open-ended calls].
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

// The calls of such units that are under way in this thread around a function, before its first
// run and behind it. Before its node runs, those fire that backward will reach.
class CallsAround {
 public:
  void begin();
  void end();
  void fire() const;

 private:
  std::shared_ptr<BackwardScheduler> clock_;  // null: no such calls
  std::vector<std::weak_ptr<Call>> calls_;
};

// Hooks what a recomputed function returns, as outputs of the calls under way at its end that its
// first run, of which `ran` tells, has touched: of units of several layers alone. Layers that are
// recomputed one by one are one call then in backward, too, whichever of them a rank leaves out.
void hook_recomputed(const std::vector<at::Tensor>& outputs, const ModuleStates& ran);

// Before a model with such units is sharded. Errors: StateError if touches cannot be seen.
void arm();

// While alive, what this thread touches in the graph task that runs is a forward that is run again
// inside a backward; also inside a custom Function of it, where grad mode is off.
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
