#include "comm/host_order.h"

#include <doctest/doctest.h>

namespace fsdp {
namespace {

TEST_CASE("the host order numbers collectives and its hash tells orders apart") {
  HostOrder a;
  HostOrder b;
  CHECK(a.hash() == b.hash());
  CHECK(a.next(Operation::kAllGather, 4096, "layers.0").sequence == 1);
  CHECK(a.next(Operation::kReduceScatter, 12, "").sequence == 2);
  b.next(Operation::kReduceScatter, 12, "");
  b.next(Operation::kAllGather, 4096, "layers.0");
  CHECK(a.hash() != b.hash());
  CHECK(a.recent() ==
        std::vector<std::string>{"#1 all_gather 4096 layers.0", "#2 reduce_scatter 12 "});
}

TEST_CASE("notes are part of the hash of the host order") {
  HostOrder a;
  HostOrder b;
  a.note("clip 1");
  b.note("clip 2");
  CHECK(a.hash() == b.hash());
  a.next(Operation::kBarrier, 0, "x");
  b.next(Operation::kBarrier, 0, "x");
  CHECK(a.hash() != b.hash());
  CHECK(a.next(Operation::kBarrier, 0, "x").note.hash == 0);
}

TEST_CASE("the host order keeps the last 64 collectives, or all of them when asked") {
  HostOrder order;
  for (int i = 0; i < 100; ++i) order.next(Operation::kBarrier, 0, "x");
  CHECK(order.recent().size() == 64);
  CHECK(order.recent().front() == "#37 barrier 0 x");
  order.keep_all();
  for (int i = 0; i < 100; ++i) order.next(Operation::kBarrier, 0, "x");
  CHECK(order.recent().size() == 164);
}

}  // namespace
}  // namespace fsdp
