#include "plan/unit_order.h"

#include <doctest/doctest.h>

using namespace fsdp;

namespace {

// Returns the record of a pass. Its root (0) calls `units` one after another, and backward reaches
// them in reverse order.
PassRecord chain(const std::vector<int>& units) {
  PassRecord record;
  const auto call = [&](int unit, auto&& body) {
    const int number = record.next_call();
    record.add({.boundary = Boundary::kPreForward, .unit = unit, .call = number});
    body();
    record.add({.boundary = Boundary::kPostForward, .flag = true, .unit = unit, .call = number});
  };
  call(0, [&] {
    for (const int unit : units) call(unit, [] {});
  });
  record.add({.boundary = Boundary::kBeginBackward});
  record.add({.boundary = Boundary::kPreBackward, .flag = true, .unit = 0});
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    record.add({.boundary = Boundary::kPreBackward, .flag = true, .unit = *unit});
    record.add({.boundary = Boundary::kClose, .flag = true, .unit = *unit});
  }
  return record;
}

using Units = std::vector<int>;

}  // namespace

TEST_CASE("before the first pass the units are expected in the order of registration") {
  UnitOrder order(PassRecord(Units{0, 0, 0, 0}));
  order.begin_forward();
  order.needed_in_forward(0);
  CHECK(order.ahead_in_forward(0).empty());
  CHECK(order.ahead_in_forward(1) == Units{1});
  CHECK(order.ahead_in_forward(2) == Units{1, 2});
  CHECK(order.ahead_in_forward(9) == Units{1, 2, 3});
  order.needed_in_forward(1);
  CHECK(order.ahead_in_forward(1) == Units{2});
}

TEST_CASE("a pass is the hint of the next one, backward in the order of need") {
  UnitOrder order(chain({3, 1, 2}));  // not the order of registration
  order.begin_forward();
  order.needed_in_forward(0);
  CHECK(order.ahead_in_forward(2) == Units{3, 1});
  order.begin_backward();
  order.needed_in_backward(0);
  CHECK(order.ahead_in_backward(2) == Units{2, 1});
  order.needed_in_backward(2);
  CHECK(order.ahead_in_backward(2) == Units{1, 3});
}

TEST_CASE("a unit called twice is not expected ahead of itself") {
  UnitOrder order(chain({1, 1, 2}));
  order.begin_forward();
  order.needed_in_forward(0);
  order.needed_in_forward(1);
  CHECK(order.ahead_in_forward(1) == Units{2});
}

TEST_CASE("a unit that the hint does not know leaves the place in it alone") {
  UnitOrder order(chain({1, 2}));
  order.begin_forward();
  order.needed_in_forward(0);
  order.needed_in_forward(3);
  CHECK(order.ahead_in_forward(1) == Units{1});
}

TEST_CASE("a record knows its orders, forgets a forward, and keeps the calls that are named") {
  PassRecord record = chain({2, 1});
  CHECK(record.forward_order() == Units{0, 2, 1});
  CHECK(record.expected_backward_order() == Units{0, 1, 2});
  CHECK(record.backward_order() == Units{0, 1, 2});
  const PassRecord before = record;
  const PassRecord::Mark mark = record.mark();
  record.add({.boundary = Boundary::kPreForward, .unit = 5, .call = record.next_call()});
  CHECK_FALSE((record == before));
  record.rewind(mark);
  CHECK((record == before));
  record.keep_only(Units{0, 2});
  CHECK(record.calls() == 2);
  CHECK(record.forward_order() == Units{0, 1});
  CHECK(record.events().back().call == 0);
}
