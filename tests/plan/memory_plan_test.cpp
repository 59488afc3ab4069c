#include "plan/memory_plan.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

using namespace fsdp;

namespace {

// A root (unit 0) with two layers.
const PassRecord kChain(std::vector<int>{0, 0, 0});

MemoryInputs chain_inputs(bool streams_overlap) {
  const UnitSizes layer{.parameter_slot_bytes = 1000,
                        .reduce_slot_bytes = 800,
                        .main_shard_bytes = 500,
                        .main_gradient_slots = {400}};
  return {.units = {UnitSizes{.parameter_slot_bytes = 10,
                              .reduce_slot_bytes = 8,
                              .main_shard_bytes = 5,
                              .main_gradient_slots = {4}},
                    layer, layer},
          .rules = std::vector<UnitRules>(3),
          .optimizer_state_bytes = 2000,
          .streams_overlap = streams_overlap};
}

}  // namespace

TEST_CASE("a pass gives every phase's bytes and the slots it needs") {
  const MemoryInputs inputs = chain_inputs(false);
  const MemoryPlan plan = plan_memory(inputs, kChain);
  const int64_t rest = 1005 + 2000;
  CHECK(plan.rest.total() == rest);
  CHECK(plan.forward_peak.total() == rest + 2010);
  CHECK(plan.after_forward.total() == rest + 10);
  // The sum consists of the root's slots, the parameters of two layers, and one reduction.
  CHECK(plan.backward_peak.total() == rest + 10 + 8 + 2000 + 800);
  CHECK(plan.after_backward.total() == rest + 804);
  CHECK(plan.after_backward[MemoryCategory::kMainGradients] == 804);
  CHECK(plan.peak_bytes() == plan.backward_peak.total());
  CHECK((plan.slots == std::vector<PlannedSlots>{{MemoryCategory::kParameterSlots, 10, 1},
                                                 {MemoryCategory::kParameterSlots, 1000, 2},
                                                 {MemoryCategory::kReduceSlots, 8, 1},
                                                 {MemoryCategory::kReduceSlots, 800, 1}}));
  CHECK(plan.held_bytes == rest + 804 + 10 + 2000 + 8 + 800);
}

TEST_CASE("streams of their own get a second reduce slot where two units can use it") {
  const MemoryInputs inputs = chain_inputs(true);
  const MemoryPlan plan = plan_memory(inputs, kChain);
  CHECK(plan.slots[2] == PlannedSlots{MemoryCategory::kReduceSlots, 8, 1});
  CHECK(plan.slots[3] == PlannedSlots{MemoryCategory::kReduceSlots, 800, 2});
}

TEST_CASE("a second backward before the step finds main gradients, and takes slots for the sums") {
  MemoryInputs inputs = chain_inputs(false);
  for (UnitSizes& unit : inputs.units) {
    unit.adding_slot_bytes = unit.main_gradient_slots.front();
    unit.reduce_slot_bytes = 0;
    unit.captures_in_place = true;
  }
  const MemoryPlan once = plan_memory(inputs, kChain);
  inputs.accumulates = true;
  const MemoryPlan twice = plan_memory(inputs, kChain);
  const int64_t rest = 1005 + 2000, gradients = 804;
  CHECK(once.slots.size() == 2);
  CHECK(once.forward_peak.total() == rest + 2010);
  CHECK(twice.forward_peak.total() == once.forward_peak.total() + gradients);
  CHECK(twice.after_forward.total() == once.after_forward.total() + gradients);
  // The sum consists of the parameters of both layers, and the reductions of the root and of one
  // layer.
  CHECK(twice.backward_peak.total() == rest + gradients + 10 + 4 + 2000 + 400);
  CHECK((twice.after_backward == once.after_backward));
  CHECK((twice.slots == std::vector<PlannedSlots>{{MemoryCategory::kParameterSlots, 10, 1},
                                                  {MemoryCategory::kParameterSlots, 1000, 2},
                                                  {MemoryCategory::kReduceSlots, 4, 1},
                                                  {MemoryCategory::kReduceSlots, 400, 1}}));
  CHECK(twice.held_bytes == once.held_bytes + 404);
}

TEST_CASE("with updates in backward, main gradients are slots, one of each size at a time") {
  for (const bool offloads : {false, true}) {
    CAPTURE(offloads);
    MemoryInputs inputs = chain_inputs(false);
    inputs.offloads = offloads;
    const MemoryPlan after = plan_memory(inputs, kChain);
    inputs.updates = true;
    const MemoryPlan inside = plan_memory(inputs, kChain);
    const int64_t gradients = 804, most = 404;  // one layer's and the root's
    const auto held = [&](const MemoryPlan& plan) {
      return offloads ? plan.host_held_bytes : plan.held_bytes;
    };
    CHECK(held(after) - held(inside) == gradients - most);
    CHECK((inside.after_backward == inside.rest));
    CHECK(inside.slots.size() == after.slots.size() + 2);
    CHECK(inside.slots[4] == PlannedSlots{MemoryCategory::kMainGradients, 4, 1});
    CHECK(inside.slots[5] == PlannedSlots{MemoryCategory::kMainGradients, 400, 1});
    if (offloads) {
      CHECK(inside.host_peak[MemoryCategory::kMainGradients] == 400);
      CHECK(after.host_peak[MemoryCategory::kMainGradients] == gradients);
    } else {
      // A layer's parameters are freed before its main gradient is allocated.
      CHECK(inside.backward_peak.total() == 1005 + 2000 + 10 + 8 + 2000 + 800);
    }
  }
}

TEST_CASE("a unit that a forward calls twice keeps its main gradient to the end of backward") {
  MemoryInputs inputs = chain_inputs(false);
  inputs.updates = true;
  std::vector<PassEvent> events = kChain.events();
  PassRecord twice;  // the second layer is called twice
  twice.next_call();
  for (const PassEvent& event : events) {
    const bool is_call = event.unit == 2 && event.call >= 0;
    if (is_call && event.boundary == Boundary::kPreForward) {
      PassEvent first = event;
      twice.next_call();
      twice.add(first);
      first.boundary = Boundary::kPostForward;
      first.flag = true;
      twice.add(first);
    }
    if (event.boundary == Boundary::kPreForward) twice.next_call();
    twice.add(event);
  }
  const MemoryPlan plan = plan_memory(inputs, twice);
  CHECK(plan.slots.back() == PlannedSlots{MemoryCategory::kMainGradients, 400, 2});
}

TEST_CASE("units that take no slots plan none, and the table names every category") {
  const MemoryInputs inputs{.units = {UnitSizes{.main_shard_bytes = 64, .resident_bytes = 32}},
                            .rules = {UnitRules{.is_gathered = false}},
                            .optimizer_state_bytes = 0};
  const MemoryPlan plan = plan_memory(inputs, PassRecord(std::vector<int>{0}));
  CHECK(plan.slots.empty());
  CHECK(plan.rest.total() == 96);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto name = std::string(name_of(static_cast<MemoryCategory>(i)));
    CHECK(plan.to_string().find(name) != std::string::npos);
  }
}

TEST_CASE("the table is as wide as a terminal, however much there is") {
  MemoryPlan plan;
  constexpr int64_t kMuch = int64_t{1023} << 30;
  for (MemoryBytes* phase : {&plan.rest, &plan.forward_peak, &plan.after_forward,
                             &plan.backward_peak, &plan.after_backward, &plan.host_peak}) {
    for (int64_t& bytes : phase->bytes) bytes = kMuch;
  }
  plan.kept_gradient_bytes = kMuch;
  std::istringstream lines(plan.to_string());
  int seen = 0;
  for (std::string line; std::getline(lines, line); ++seen) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
  }
  CHECK(seen == kMemoryCategories + 5);
  CHECK(plan.to_string().starts_with(
      "                                    forward       after    backward       after\n"
      "bytes of this rank         rest        peak     forward        peak    backward\n"
      "main shards          1023.0 GiB"));
}

TEST_CASE("a unit that is recomputed in backward is planned where its recomputation gathers it") {
  // Both layers are recomputed in one segment. In backward, they run forward again before the first
  // gradient. So both are unsharded at the same time as the root.
  PassRecord record;
  const auto forward = [&](int unit, int call) {
    record.add({.boundary = Boundary::kPreForward, .unit = unit, .call = call});
  };
  const auto back = [&](int unit, int call, bool in_graph) {
    record.add({.boundary = Boundary::kPostForward, .flag = in_graph, .unit = unit, .call = call});
  };
  const int root = record.next_call(), first = record.next_call(), second = record.next_call();
  forward(root, root);
  forward(1, first);
  back(1, first, false);
  forward(2, second);
  back(2, second, false);
  back(root, root, true);
  record.add({.boundary = Boundary::kBeginBackward});
  record.add({.boundary = Boundary::kPreBackward, .flag = true, .unit = 0});
  forward(1, -1);
  back(1, -1, true);
  forward(2, -1);
  back(2, -1, true);
  for (const int unit : {2, 1, 0}) {
    if (unit > 0) record.add({.boundary = Boundary::kPreBackward, .flag = true, .unit = unit});
    record.add({.boundary = Boundary::kClose, .flag = true, .unit = unit});
  }
  record.add({.boundary = Boundary::kEndBackward});
  MemoryInputs inputs = chain_inputs(false);
  for (UnitRules& rules : inputs.rules) rules.prefetch_units = 0;
  const MemoryPlan plan = plan_memory(inputs, record);
  const int64_t rest = 1005 + 2000;
  CHECK(plan.forward_peak.total() == rest + 1010);
  CHECK(plan.after_forward.total() == rest + 10);
  CHECK(plan.backward_peak.total() == rest + 10 + 8 + 2000 + 800);
  CHECK((plan.slots[1] == PlannedSlots{MemoryCategory::kParameterSlots, 1000, 2}));
}
