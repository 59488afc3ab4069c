// Tests the policy of a pass. The units of this test log the pass's actions.
#include "plan/pass.h"

#include "plan/support/scripted_units.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Runs a pass that calls neither unit 1 nor unit 2, to the end of its backward.
void run_root(Pass& pass) {
  pass.begin_forward();
  pass.post_forward(0, pass.pre_forward(0), true);
  pass.begin_backward();
  pass.pre_backward(0, true);
  pass.close(0, true);
}

}  // namespace

TEST_CASE("a chain: one unit ahead, each resharded after its turn, the root kept for backward") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  check_same(asked_in_chain(pass, units), {
                                              "unshard 0, ahead 1, wait 0",
                                              "ahead 2, wait 1",
                                              "reshard 1",
                                              "wait 2",
                                              "reshard 2",
                                              "",
                                              "ahead 2, open 0",
                                              "ahead 1, wait 2, open 2",
                                              "reshard 2, reduce 2",
                                              "wait 1, open 1",
                                              "reshard 1, reduce 1",
                                              "reshard 0, reduce 0",
                                              "",
                                          });
  CHECK_FALSE(run_chain(pass));  // equals the prediction
}

TEST_CASE("the last units of forward stay for backward, as the last pass had them") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo, /*kept_units=*/1);
  check_same(asked_in_chain(pass, units), {
                                              "unshard 0, ahead 1, wait 0",
                                              "ahead 2, wait 1",
                                              "reshard 1",
                                              "wait 2",
                                              "",
                                              "",
                                              "open 0",
                                              "ahead 1, open 2",
                                              "reshard 2, reduce 2",
                                              "wait 1, open 1",
                                              "reshard 1, reduce 1",
                                              "reshard 0, reduce 0",
                                              "",
                                          });
  // If no graph is recorded, no unit stays unsharded.
  pass.begin_forward();
  const int root = pass.pre_forward(0);
  for (const int unit : {1, 2}) pass.post_forward(unit, pass.pre_forward(unit), false);
  units.taken();
  pass.post_forward(0, root, false);
  CHECK(units.taken() == "reshard 0, reshard 2");
  // This pass calls unit 1 last. So in later passes unit 1 stays unsharded.
  CHECK(run_chain(pass, {2, 1}));
  units.taken();
  const std::vector<std::string> asked = asked_in_chain(pass, units, {2, 1});
  CHECK(asked[2] == "reshard 2");
  CHECK(asked[4] == "");
}

TEST_CASE("a pass that was played is the same list of actions as the one that was recorded") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), PassRecord(std::vector<int>{0, 0, 1}));
  CHECK(run_chain(pass));  // the prediction had unit 2 inside unit 1
  units.taken();
  CHECK_FALSE(run_chain(pass));
  const std::string real = units.taken();

  ScriptedUnits counted(3);
  Pass planned(counted, pass.rules(), pass.hint());
  play(pass.hint(), planned);
  CHECK(counted.taken() == real);
}

TEST_CASE("rules: kept after forward, not unsharded in backward, not gathered, no prefetch") {
  ScriptedUnits units(3);
  SUBCASE("kept after forward") {
    std::vector<UnitRules> rules(3, UnitRules{.reshard_after_forward = false});
    Pass pass(units, rules, kRootAndTwo);
    run_chain(pass);
    CHECK(units.taken() ==
          "unshard 0, ahead 1, wait 0, ahead 2, wait 1, wait 2, open 0, open 2, reshard 2, "
          "reduce 2, open 1, reshard 1, reduce 1, reshard 0, reduce 0");
  }
  SUBCASE("not unsharded in backward") {
    std::vector<UnitRules> rules(3);
    rules[2].unshard_in_backward = false;
    Pass pass(units, rules, kRootAndTwo);
    run_chain(pass);
    const std::string log = units.taken();
    CAPTURE(log);
    CHECK(
        log.ends_with("reshard 2, open 0, ahead 1, open 2, reduce 2, wait 1, open 1, reshard 1, "
                      "reduce 1, reshard 0, reduce 0"));
  }
  SUBCASE("resident: nothing to fetch ahead") {
    Pass pass(units, std::vector<UnitRules>(3, UnitRules{.is_gathered = false}), kRootAndTwo);
    run_chain(pass);
    CHECK(units.taken().find("ahead") == std::string::npos);
  }
  SUBCASE("no prefetch") {
    Pass pass(units, std::vector<UnitRules>(3, UnitRules{.prefetch_units = 0}), kRootAndTwo);
    run_chain(pass);
    CHECK(units.taken().find("ahead") == std::string::npos);
  }
}

TEST_CASE("a prefetch without a free slot is left out, and the unit gathered on demand") {
  ScriptedUnits units(3);
  units.free_slots = 0;
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  run_chain(pass);
  const std::string log = units.taken();
  CHECK(log.find("ahead") == std::string::npos);
  CHECK(log.starts_with("unshard 0, wait 0, unshard 1, wait 1, reshard 1"));
}

TEST_CASE("a forward without a graph gives everything back and is not recorded") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  pass.begin_forward();
  const int root = pass.pre_forward(0);
  pass.post_forward(1, pass.pre_forward(1), false);
  pass.post_forward(0, root, false);
  CHECK(units.taken().ends_with("reshard 1, reshard 0, reshard 2"));
  CHECK(pass.recorded_calls() == 0);
  CHECK_FALSE(run_chain(pass));
}

TEST_CASE("recomputation gathers by the order of backward, and its units stay for their own") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  const auto run = [&] {
    pass.begin_forward();
    const int root = pass.pre_forward(0);
    pass.post_forward(1, pass.pre_forward(1), false);
    pass.post_forward(0, root, true);
    pass.begin_backward();
    pass.pre_backward(0, true);
    units.taken();
    pass.pre_recompute(1);
    pass.post_recompute(1);
    const std::string recomputed = units.taken();
    pass.pre_backward(1, true);
    pass.close(1, true);
    pass.close(0, true);
    pass.end_backward(true);
    return recomputed;
  };
  CHECK(run() == "wait 1");  // prefetched, because forward predicts this order
  CHECK(pass.take_record(true));
  run();
  CHECK_FALSE(pass.take_record(true));
  ScriptedUnits counted(3);
  Pass planned(counted, pass.rules(), pass.hint());
  play(pass.hint(), planned);
  CHECK(counted.taken().find("open 0, wait 1, open 1, reshard 1, reduce 1") != std::string::npos);
}

TEST_CASE("without reduction gradients are kept, until a pass that reduces them all") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  pass.set_sync(GradientSync::kNone);
  run_chain(pass);
  CHECK(units.taken().find("open to keep 2, reshard 2, keep 2") != std::string::npos);
  CHECK(units.gradients(1) == GradientState::kKept);
  pass.set_sync(GradientSync::kAll);
  run_root(pass);
  units.taken();
  pass.end_backward(true);
  CHECK(units.taken() == "reduce 1, reshard 2, reduce 2");  // unit 2 was prefetched
}

TEST_CASE("what passes reduced within groups is summed over the groups by the first that does") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  pass.set_sync(GradientSync::kInside);
  run_chain(pass);
  const std::string inside = units.taken();
  CHECK(inside.find("reduce inside 2") != std::string::npos);
  CHECK(inside.find("across") == std::string::npos);
  pass.set_sync(GradientSync::kAll);
  run_root(pass);
  CHECK(units.taken().ends_with("reduce 0"));
  pass.end_backward(true);
  CHECK(units.taken() == "across 1, reshard 2, across 2");
}

TEST_CASE("a backward inside a forward reshards what runs no forward, and is not recorded") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  pass.begin_forward();
  const int root = pass.pre_forward(0);
  pass.post_forward(1, pass.pre_forward(1), true);
  units.taken();
  pass.begin_backward();
  pass.pre_backward(0, true);
  pass.pre_backward(1, true);
  pass.close(1, true);
  pass.close(0, true);
  pass.end_backward(true);
  CHECK(units.taken() ==
        "open 0, unshard 1, wait 1, open 1, reshard 1, reduce 1, reduce 0, reshard 2");
  CHECK(units.parameters(0) == ParameterState::kUnsharded);
  pass.post_forward(2, pass.pre_forward(2), true);
  pass.post_forward(0, root, true);
  pass.begin_backward();
  for (const int unit : {0, 2}) pass.pre_backward(unit, true);
  for (const int unit : {2, 0}) pass.close(unit, true);
  pass.end_backward(true);
  pass.take_record(true);
  CHECK(pass.hint().forward_order() == std::vector<int>{0, 1, 2});
  CHECK(pass.hint().backward_order() == std::vector<int>{0, 2});
}

TEST_CASE(
    "a failed backward abandons every unit, reshards what runs no forward, and is not recorded") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo);
  pass.begin_forward();
  pass.post_forward(0, pass.pre_forward(0), true);
  pass.begin_backward();
  pass.pre_backward(0, true);
  pass.pre_recompute(1);
  units.taken();
  pass.abandon();
  CHECK(units.taken() == "abandon 0, reshard 0, abandon 1, abandon 2");
  CHECK(pass.recorded_calls() == 0);
  CHECK(pass.active_calls(1) == 1);
}
