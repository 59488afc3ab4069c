// The order of units, in integers.
#include "engine/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace fsdp;

namespace {

// A root (0) with children in a row.
Schedule chain(int layers) {
  const std::vector<int> parents(static_cast<size_t>(layers) + 1, 0);
  return Schedule(parents);
}

// Records a pass of a root that calls `units` in turn; backward fires them in reverse.
bool record(Schedule& schedule, const std::vector<int>& units) {
  schedule.begin_forward();
  std::vector<int> records = {schedule.enter(0)};
  for (const int unit : units) {
    records.push_back(schedule.enter(unit));
    schedule.exit(records.back());
  }
  schedule.exit(records[0]);
  schedule.begin_backward();
  schedule.fired(records[0]);
  schedule.needed_in_backward(0);
  for (size_t i = units.size(); i > 0; --i) {
    schedule.fired(records[i]);
    schedule.needed_in_backward(units[i - 1]);
  }
  return schedule.end_pass();
}

}  // namespace

TEST_CASE("before the first pass the units are expected in the order of registration") {
  Schedule schedule = chain(3);
  schedule.begin_forward();
  schedule.enter(0);
  CHECK(schedule.ahead_in_forward(0).empty());
  CHECK(schedule.ahead_in_forward(1) == std::vector<int>{1});
  CHECK(schedule.ahead_in_forward(2) == std::vector<int>{1, 2});
  CHECK(schedule.ahead_in_forward(9) == std::vector<int>{1, 2, 3});
  schedule.exit(schedule.enter(1));
  CHECK(schedule.ahead_in_forward(1) == std::vector<int>{2});
}

TEST_CASE("a pass is the hint of the next one, backward in the order of need") {
  Schedule schedule = chain(3);
  CHECK(record(schedule, {3, 1, 2}));        // not as registered
  CHECK_FALSE(record(schedule, {3, 1, 2}));  // as before
  schedule.begin_forward();
  schedule.enter(0);
  CHECK(schedule.ahead_in_forward(2) == std::vector<int>{3, 1});
  schedule.begin_backward();
  schedule.needed_in_backward(0);
  CHECK(schedule.ahead_in_backward(2) == std::vector<int>{2, 1});
  schedule.needed_in_backward(2);
  CHECK(schedule.ahead_in_backward(2) == std::vector<int>{1, 3});
}

TEST_CASE("a unit called twice is not expected ahead of itself") {
  Schedule schedule = chain(2);
  record(schedule, {1, 1, 2});
  schedule.begin_forward();
  schedule.enter(0);
  schedule.exit(schedule.enter(1));
  CHECK(schedule.ahead_in_forward(1) == std::vector<int>{2});
}

TEST_CASE("a unit that the hint does not know leaves the place in it alone") {
  Schedule schedule = chain(3);
  record(schedule, {1, 2});
  schedule.begin_forward();
  schedule.enter(0);
  schedule.exit(schedule.enter(3));
  CHECK(schedule.ahead_in_forward(1) == std::vector<int>{1});
}

TEST_CASE("a forward without a graph and a failed pass leave the hint as it was") {
  Schedule schedule = chain(2);
  record(schedule, {2, 1});
  const auto hint = schedule.hint();
  schedule.begin_forward();
  schedule.exit(schedule.enter(1));
  schedule.drop_forward();
  CHECK_FALSE(record(schedule, {2, 1}));
  schedule.begin_forward();
  schedule.enter(1);
  schedule.abandon_pass();
  CHECK((schedule.hint() == hint));
}

TEST_CASE("a chain plays to one slot more than its prefetch depth and takes each gradient once") {
  for (const int depth : {0, 1, 2}) {
    for (const bool reshard : {true, false}) {
      const Schedule schedule = chain(5);
      const std::vector<UnitRules> rules(
          6, UnitRules{.reshard_after_forward = reshard, .prefetch_units = depth});
      int seated = 0, most = 0, gradients = 0, reduces = 0, most_reduces = 0;
      for (const MemoryEvent& event : schedule.memory_events(rules)) {
        seated += event.action == MemoryAction::kTakeParameters;
        seated -= event.action == MemoryAction::kGiveParameters;
        reduces += event.action == MemoryAction::kTakeReduce;
        reduces -= event.action == MemoryAction::kGiveReduce;
        gradients += event.action == MemoryAction::kTakeMainGradient;
        most = std::max(most, seated);
        most_reduces = std::max(most_reduces, reduces);
      }
      CHECK(seated == 0);
      CHECK(reduces == 0);
      CHECK(gradients == 6);
      CHECK(most == (reshard ? 1 + 1 + depth : 6));  // root, the one that runs, those ahead
      CHECK(most_reduces == 2);                      // root's and the one that runs
    }
  }
}
