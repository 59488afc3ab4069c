// reach_of derives a program's graph on one rank in one step without tensors: the calls that will
// fire in backward. The engine refuses programs whose calls fire on some ranks only, so the fuzz
// test does not run them.
#pragma once

#include <vector>

#include "closing/support/program.h"

namespace fsdp::testing {

struct Reach {
  // One number for each call and checkpoint, in a fixed order: says if it fires, and for which
  // unit.
  std::vector<int> fired;
  int fired_calls = 0;  // the calls among them
  bool loss_requires_grad = false;
  bool changes_passed_through = false;  // changes in place an input that a unit returned: refused
};

Reach reach_of(const Program& program, int step, int rank,
               Boundaries boundaries = Boundaries::kUnits);

}  // namespace fsdp::testing
