#include "comm/collective_checks.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

TEST_CASE("an operation without a row is refused, whatever it asks for") {
  CHECK_THROWS_WITH_AS(require_valid({.operation = static_cast<Operation>(5)}, 2),
                       "unknown collective operation 5; hint: use a value of Operation",
                       InvalidArgument);
  for (const Operation operation : {Operation::kAllGather, Operation::kReduceScatter,
                                    Operation::kAllReduce, Operation::kBarrier}) {
    CHECK_NOTHROW(require_valid({.operation = operation}, 2));
  }
}

TEST_CASE("a root and a reduce-op are refused where the operation takes none") {
  CHECK_THROWS_WITH_AS(
      require_valid({.operation = Operation::kAllGather, .tag = {.label = "u"}, .root = 1}, 2),
      "all_gather has no root rank, but root is 1 (all_gather from rank 1 'u'); hint: leave root "
      "at its default, -1",
      InvalidArgument);
  CHECK_THROWS_WITH_AS(require_valid({.operation = Operation::kBroadcast,
                                      .tag = {.label = "u"},
                                      .reduce_op = ReduceOp::kMax,
                                      .root = 1},
                                     2),
                       "broadcast does not reduce, but reduce_op is set (broadcast from rank 1 "
                       "'u'); hint: leave reduce_op at its default, kSum",
                       InvalidArgument);
  CHECK_NOTHROW(require_valid({.operation = Operation::kBroadcast, .root = 1}, 2));
  CHECK_NOTHROW(
      require_valid({.operation = Operation::kReduceScatter, .reduce_op = ReduceOp::kMax}, 2));
}

}  // namespace
}  // namespace fsdp
