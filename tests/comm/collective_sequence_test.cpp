#include "comm/collective_sequence.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

namespace fsdp {
namespace {

TEST_CASE("the host order numbers collectives and tells its observer of each") {
  CollectiveSequence order;
  order.next(Operation::kBarrier, 0, "before");
  std::vector<std::string> seen;
  order.observe([&](const CollectiveTag& tag, Operation operation, int64_t numel) {
    seen.push_back(fmt::format("#{} {} {} {}", tag.sequence, name_of(operation), numel, tag.label));
  });
  CHECK(order.next(Operation::kAllGather, 4096, "layers.0").sequence == 2);
  CHECK(order.next(Operation::kReduceScatter, 12, "").sequence == 3);
  CHECK(seen == std::vector<std::string>{"#2 all_gather 4096 layers.0", "#3 reduce_scatter 12 "});
}

TEST_CASE("the next tag takes what was noted, and tells notes apart") {
  CollectiveSequence a;
  CollectiveSequence b;
  a.note("clip 1");
  b.note("clip 2");
  const CollectiveTag one = a.next(Operation::kBarrier, 0, "x");
  const CollectiveTag other = b.next(Operation::kBarrier, 0, "x");
  CHECK(one.note.hash != other.note.hash);
  CHECK(std::string(one.note.text.data()) == "clip 1");
  CHECK(a.next(Operation::kBarrier, 0, "x").note.hash == 0);
}

}  // namespace
}  // namespace fsdp
