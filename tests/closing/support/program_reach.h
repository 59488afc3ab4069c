// reach_of derives which calls of a program fire in backward on one rank in one step. It needs no
// tensors. The engine refuses programs whose calls fire on some ranks only, so the fuzz test does
// not run them.
#pragma once

#include <vector>

#include "closing/support/program.h"

namespace fsdp::testing {

struct Reach {
  // Holds one number for each call and each checkpoint, in a fixed order. The number says whether
  // the call fires, and for which unit.
  std::vector<int> fired;
  int fired_calls = 0;  // number of entries of `fired` that are calls and fire
  bool loss_requires_grad = false;
  // True if the program changes an input in place that a unit returned. The engine refuses this.
  bool changes_passed_through = false;
};

Reach reach_of(const Program& program, int step, int rank,
               Boundaries boundaries = Boundaries::kUnits);

}  // namespace fsdp::testing
