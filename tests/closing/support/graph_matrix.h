// The matrix of graphs on which a simpler closing rule breaks, with plain graphs beside them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "closing/support/program.h"

namespace fsdp::testing {

enum class Usage : uint8_t {
  kAllUsed,
  kUnusedOnOneRank,  // one parameter (or as the graph says), on rank 1
  kSkipped,          // one unit, by all ranks in the second step
};

// A graph and its counts in two steps without prefetch, with everything used.
struct MatrixGraph {
  std::string name;
  std::function<Program(Usage)> make;
  // `bound`: most units bound at once, with the root.
  int bound = 0, gathers = 0, reduces = 0;
};

std::vector<MatrixGraph> matrix_graphs();

}  // namespace fsdp::testing
