// The graphs on which a simpler rule for closing units fails, and plain graphs for comparison.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "closing/support/program.h"

namespace fsdp::testing {

enum class Usage : uint8_t {
  kAllUsed,
  kUnusedOnOneRank,  // one parameter is unused on rank 1; some graphs choose more
  kSkipped,          // all ranks skip one unit in the second step
};

// A graph, and its counts over two steps without prefetch if every parameter is used.
struct MatrixGraph {
  std::string name;
  std::function<Program(Usage)> make;
  // `bound` is the largest number of units bound at the same time. The root is one of them.
  int bound = 0, gathers = 0, reduces = 0;
};

std::vector<MatrixGraph> matrix_graphs();

}  // namespace fsdp::testing
