#include "shard/memory_plan.h"

#include <doctest/doctest.h>

using namespace fsdp;

namespace {

using enum MemoryAction;

// A root (unit 0) and two layers, as a forward and backward of a chain takes them.
const std::vector<MemoryEvent> kChain = {
    {kTakeParameters, 0}, {kTakeParameters, 1}, {kTakeParameters, 2},   {kGiveParameters, 1},
    {kGiveParameters, 2}, {kEndForward, 0},     {kTakeReduce, 0},       {kTakeParameters, 2},
    {kTakeReduce, 2},     {kTakeParameters, 1}, {kGiveParameters, 2},   {kTakeMainGradient, 2},
    {kGiveReduce, 2},     {kTakeReduce, 1},     {kGiveParameters, 1},   {kTakeMainGradient, 1},
    {kGiveReduce, 1},     {kGiveParameters, 0}, {kTakeMainGradient, 0}, {kGiveReduce, 0},
    {kEndBackward, 0}};

MemoryInputs chain_inputs(bool streams_overlap) {
  const UnitSizes layer{.parameter_slot_bytes = 1000,
                        .reduce_slot_bytes = 800,
                        .main_shard_bytes = 500,
                        .main_gradient_bytes = 400};
  return {.units = {UnitSizes{.parameter_slot_bytes = 10,
                              .reduce_slot_bytes = 8,
                              .main_shard_bytes = 5,
                              .main_gradient_bytes = 4},
                    layer, layer},
          .optimizer_state_bytes = 2000,
          .streams_overlap = streams_overlap};
}

}  // namespace

TEST_CASE("a played step gives every phase's bytes and the slots it needs") {
  const MemoryInputs inputs = chain_inputs(false);
  const MemoryPlan plan = play_memory(inputs, kChain);
  const int64_t rest = 1005 + 2000;
  CHECK(plan.rest.total() == rest);
  CHECK(plan.forward_peak.total() == rest + 2010);
  CHECK(plan.after_forward.total() == rest + 10);
  // Root's slots, two layers' parameters, one reduction.
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
  const MemoryPlan plan = play_memory(inputs, kChain);
  CHECK(plan.slots[2] == PlannedSlots{MemoryCategory::kReduceSlots, 8, 1});
  CHECK(plan.slots[3] == PlannedSlots{MemoryCategory::kReduceSlots, 800, 2});
}

TEST_CASE("units that take no slots plan none, and the table names every category") {
  const MemoryInputs inputs{.units = {UnitSizes{.main_shard_bytes = 64, .resident_bytes = 32}},
                            .optimizer_state_bytes = 0};
  const std::vector<MemoryEvent> events = {
      {kTakeParameters, 0}, {kEndForward, 0}, {kTakeMainGradient, 0}, {kEndBackward, 0}};
  const MemoryPlan plan = play_memory(inputs, events);
  CHECK(plan.slots.empty());
  CHECK(plan.rest.total() == 96);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto name = std::string(name_of(static_cast<MemoryCategory>(i)));
    CHECK(plan.to_string().find(name) != std::string::npos);
  }
}
