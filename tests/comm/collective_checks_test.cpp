#include "comm/collective_checks.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

TEST_CASE("an operation without a row is refused, whatever it asks for") {
  CHECK_THROWS_WITH_AS(
      require_valid({.operation = static_cast<Operation>(5)}, 2),
      "operation 5 of a collective; hint: traits_of has a row for each that exists",
      InvalidArgument);
  for (const Operation operation : {Operation::kAllGather, Operation::kReduceScatter,
                                    Operation::kAllReduce, Operation::kBarrier}) {
    CHECK_NOTHROW(require_valid({.operation = operation}, 2));
  }
}

TEST_CASE("a root and a reduce-op are refused where the operation takes none") {
  CHECK_THROWS_WITH_AS(
      require_valid({.operation = Operation::kAllGather, .tag = {.label = "u"}, .root = 1}, 2),
      "all_gather with root 1 (all_gather from rank 1 'u'); hint: leave it at -1: no rank differs "
      "from the others",
      InvalidArgument);
  CHECK_THROWS_WITH_AS(
      require_valid({.operation = Operation::kBroadcast,
                     .tag = {.label = "u"},
                     .reduce_op = ReduceOp::kMax,
                     .root = 1},
                    2),
      "broadcast with a reduce-op (broadcast from rank 1 'u'); hint: leave it at kSum: nothing is "
      "reduced",
      InvalidArgument);
  CHECK_NOTHROW(require_valid({.operation = Operation::kBroadcast, .root = 1}, 2));
  CHECK_NOTHROW(
      require_valid({.operation = Operation::kReduceScatter, .reduce_op = ReduceOp::kMax}, 2));
}

}  // namespace
}  // namespace fsdp
