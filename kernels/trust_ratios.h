// Computes the trust ratios of LAMB and LARS: for each parameter the norm of its values and the
// norm of its update. Ranks hold parts of a parameter. Still, a norm has the same bits for every
// number of ranks and on every device.
//
// [Note: norms of cut parameters]
// One binary tree over a parameter's elements adds the squares, which are exact in float64. Its
// leaf k is the square of element k, counted from the parameter's first element. The values of
// nodes 2k and 2k + 1 are added and form node k of the next level. Missing elements are zeros. A
// node thus covers 2^n elements, beginning at a multiple of 2^n; a block of 4,096 elements is a
// node. The shape of the tree depends on the number of elements only. A rank cuts its interval of a
// parameter into the fewest nodes and sums each (sum_squares). No node crosses the border of a
// rank, wherever the border is, so a node's value does not depend on the cut. Then all ranks
// exchange the values of all nodes in one all_reduce. Each value is nonzero on one rank only, and
// adding zeros changes no bit. Each rank then adds the nodes in the order of the tree
// (trust_ratios). A parameter on one rank is one node. A border adds up to two nodes for each
// level of the tree.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/update.h"

namespace fsdp::kernels {

// Sums of squares over a node. Ranks all_reduce the two members as float64.
struct SquareSums {
  double param = 0;
  double update = 0;
};

// A node that this rank owns. `elements` are those elements of the node that exist, with their
// gradient, moments, counter and decay.
struct SumNode {
  UpdateSegment elements;
  SquareSums* sums = nullptr;  // written
};

// Returns the bytes of scratch that sum_squares needs.
int64_t sum_scratch_bytes(std::span<const SumNode> nodes);

// Writes the sums of each node, for the next update by `rule`: the squares of the parameter, and of
// Lamb's r or Sgd's scaled gradient. Writes nothing else, so the update itself still updates the
// moments. `grad_scale` is that of UpdateScalars. No other work may use `scratch`, aligned to 16,
// until the stream has finished the work of this call.
// Errors: InvalidArgument if the rule is neither Lamb nor Sgd; the errors of the rule.
void sum_squares(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
                 const float* grad_scale, void* scratch);

// Adds the sums at index `from` to those at index `into`.
struct NodeJoin {
  int32_t into = 0;
  int32_t from = 0;
};

// A parameter with the joins that lead to its root. They are in device memory and are made in their
// order. `root` is the index of the root.
struct TrustParameter {
  const NodeJoin* joins = nullptr;
  int32_t join_count = 0;
  int32_t root = 0;
  double weight_decay = 0;  // in the formula below
  float* ratio = nullptr;   // written
};

// The options of a ratio: coefficient · |p| / (|u| + weight_decay · |p| + eps), or 1 if a norm is
// 0. LAMB uses the defaults and a weight_decay of 0. The ratio is computed in float64 and rounded
// once.
struct TrustFormula {
  double coefficient = 1;
  double eps = 0;
};

// Joins nodes of `sums`, which all parameters share, and writes the ratios.
void trust_ratios(Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
                  const TrustFormula& formula);

}  // namespace fsdp::kernels
