// The graphs on which a simpler rule of closing breaks, and the plain ones beside them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "closing/support/program.h"

namespace fsdp::testing {

enum class Usage : uint8_t {
  kAllUsed,
  kUnusedOnOneRank,  // one parameter, or what the graph says: on rank 1
  kSkipped,          // one unit, by all ranks in the second step
};

// Most units seated at once (the root among them), gathers and reduces of two steps without
// prefetch, everything used.
struct MatrixGraph {
  std::string name;
  std::function<Program(Usage)> make;
  int bound = 0, gathers = 0, reduces = 0;
};

std::vector<MatrixGraph> matrix_graphs();

}  // namespace fsdp::testing
