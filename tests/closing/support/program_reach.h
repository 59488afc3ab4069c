// What a program's graph looks like on one rank in one step, worked out without tensors: which
// calls will fire in backward. Programs whose calls fire on some ranks only are refused by the
// engine, so the fuzz keeps to those that do not.
#pragma once

#include <vector>

#include "closing/support/program.h"

namespace fsdp::testing {

struct Reach {
  // One number a call and a checkpoint, in a fixed order: whether it fires, and of which unit.
  std::vector<int> fired;
  int fired_calls = 0;  // of these, calls
  bool loss_requires_grad = false;
  bool changes_passed_through = false;  // an in-place change of what a unit passed through: refused
};

Reach reach_of(const Program& program, int step, int rank,
               Boundaries boundaries = Boundaries::kUnits);

}  // namespace fsdp::testing
