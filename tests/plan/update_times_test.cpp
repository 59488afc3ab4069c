// Tests the times at which a backward updates units.
#include "plan/update_times.h"

#include "plan/support/scripted_units.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("a unit that was called once is updated when reduced, any other at the end of backward") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3, UnitRules{.is_gathered = false}), kRootAndTwo,
            /*kept_units=*/0, /*updates=*/true);
  check_same(asked_in_chain(pass, units, {1, 2, 1}), {
                                                         "unshard 0, wait 0",
                                                         "unshard 1, wait 1",
                                                         "reshard 1",
                                                         "unshard 2, wait 2",
                                                         "reshard 2",
                                                         "unshard 1, wait 1",
                                                         "reshard 1",
                                                         "",
                                                         "open 0",
                                                         "unshard 1, wait 1, open 1",
                                                         "reshard 1, reduce 1",
                                                         "unshard 2, wait 2, open 2",
                                                         "reshard 2, reduce 2, update 2",
                                                         "unshard 1, wait 1, open 1",
                                                         "reshard 1, reduce 1",
                                                         "reshard 0, reduce 0, update 0",
                                                         "update 1",
                                                     });
  // Each pass counts its own calls.
  run_chain(pass);
  CHECK(
      units.taken().ends_with("reduce 2, update 2, unshard 1, wait 1, open 1, reshard 1, "
                              "reduce 1, update 1, reshard 0, reduce 0, update 0"));
}

TEST_CASE("an updated unit is not gathered ahead, although the last pass used it once more") {
  for (const bool updates : {false, true}) {
    ScriptedUnits units(3);
    Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo, /*kept_units=*/0, updates);
    run_chain(pass, {2, 1, 2});
    units.taken();
    run_chain(pass, {1, 2});
    const std::string log = units.taken();
    CAPTURE(log);
    CHECK((log.find("ahead 2", log.find("reduce 2")) == std::string::npos) == updates);
  }
}

TEST_CASE("a unit counts as updated until its backward ends") {
  ScriptedUnits units(3);
  Pass pass(units, std::vector<UnitRules>(3), kRootAndTwo, /*kept_units=*/0, /*updates=*/true);
  std::string updated;
  run_chain(pass, {1, 2}, [&] {
    for (int unit = 0; unit < 3; ++unit) updated += pass.is_updated(unit) ? '1' : '0';
    updated += ' ';
  });
  CHECK(updated == "000 000 000 000 000 000 000 000 001 001 011 111 000 ");
}
