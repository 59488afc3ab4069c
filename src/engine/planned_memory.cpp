#include "engine/planned_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/error.h"
#include "plan/memory_plan.h"

namespace fsdp {

// Staging of an engine on the CPU is memory of its device.
MemoryLedger& PlannedMemory::ledger_of(MemoryCategory category) {
  if (category != MemoryCategory::kCheckpointStaging) return context_.main->ledger();
  return on_gpu() ? context_.memory.host_ledger : context_.memory.ledger;
}

bool PlannedMemory::on_gpu() const { return !context_.streams.device_is_host(); }

void PlannedMemory::add(MemoryCategory category, int64_t bytes) {
  added_[category] += bytes;
  MemoryLedger& ledger = ledger_of(category);
  ledger.hold(bytes);
  if (bytes > 0) {
    ledger.take(category, bytes);
  } else {
    ledger.give(category, -bytes);
  }
}

void PlannedMemory::remake(const Pass& pass) {
  MemoryInputs inputs{.units = {},
                      .rules = pass.rules(),
                      .kept_units = pass.kept_units(),
                      .optimizer_state_bytes = added_[MemoryCategory::kOptimizerState],
                      .checkpoint_staging_bytes = added_[MemoryCategory::kCheckpointStaging],
                      .on_gpu = on_gpu(),
                      .offloads = context_.main->is_host(),
                      .streams_overlap = !context_.streams.reduce->is_inline(),
                      .accumulates = accumulates_,
                      .updates = context_.updates_in_backward};
  std::map<int64_t, int64_t> gradients;  // main gradients by size
  for (const auto& unit : units_) {
    inputs.units.push_back(unit->shard->sizes());
    for (const int64_t bytes : inputs.units.back().main_gradient_slots) ++gradients[bytes];
  }
  plan_ = plan_memory(inputs, pass.hint());
  // If backward updates the units, main gradients are slots of the plan.
  if (inputs.updates) gradients.clear();
  std::map<int64_t, int64_t> parameter_slots, reduce_slots;
  for (const PlannedSlots& slots : plan_.slots) {
    const bool parameters = slots.category == MemoryCategory::kParameterSlots;
    const bool reduces = slots.category == MemoryCategory::kReduceSlots;
    (parameters ? parameter_slots
     : reduces  ? reduce_slots
                : gradients)[slots.slot_bytes] = slots.count;
  }
  // If the plan no longer contains a slot, the slot is freed when it is returned to the pool.
  context_.memory.parameter_slots.plan(parameter_slots);
  context_.memory.reduce_slots.plan(reduce_slots);
  context_.main->gradients.plan(gradients);
  add_learned();
}

void PlannedMemory::begin_backward(bool finds_gradients) {
  // The phase that the ledger has measured up to here was a forward. If a pass has several
  // forwards, the plan uses the highest of their peaks.
  finds_gradients_ = finds_gradients;
  const MemoryBytes& peak = context_.memory.ledger.phase_peak();
  if (peak.total() > forward_peak_.total()) forward_peak_ = peak;
  context_.memory.ledger.begin_phase();
}

void PlannedMemory::follow(const Pass& pass) {
  // The plan now simulates the new record. Memory learned with the old record does not apply to the
  // new one.
  learned_gradients_ = 0;
  forward_peak_ = learned_forward_ = learned_peak_ = {};
  remake(pass);
}

void PlannedMemory::expect_captures(const Pass& pass) {
  // Called before the unit acquires its slot, because the plan of an accumulating backward has more
  // slots.
  if (!finds_gradients_ || std::exchange(accumulates_, true)) return;
  remake(pass);
}

// Adds to the plan the memory that passes used beyond the simulated record, for example for a
// second forward beside the first, or for gradients that a GradSync scope kept.
void PlannedMemory::learn_from_overflow(const Pass& pass) {
  const bool parameters = context_.memory.parameter_slots.learn();
  const bool reduces = context_.memory.reduce_slots.learn();
  const bool gradients = context_.updates_in_backward && context_.main->gradients.learn();
  const int64_t unforeseen =
      context_.main->ledger().stats().in_use[MemoryCategory::kMainGradients] -
      main_gradients_after_backward()[MemoryCategory::kMainGradients];
  learned_gradients_ += std::max<int64_t>(unforeseen, 0);
  const MemoryBytes& peak = context_.memory.ledger.phase_peak();
  const MemoryBytes forward = std::exchange(forward_peak_, {});
  const bool higher_forward = forward.total() > plan_.forward_peak.total();
  if (higher_forward) learned_forward_ = forward;
  const bool higher_backward = peak.total() > plan_.backward_peak.total();
  if (higher_backward) learned_peak_ = peak;
  // If a GradSync scope keeps gradients, the program itself requested the reduce slots, so no
  // warning is given.
  if (parameters || (reduces && !keeps_gradients_)) warn_of_overflow();
  const bool higher = higher_forward || higher_backward;
  if (parameters || reduces || gradients || unforeseen > 0 || higher) remake(pass);
}

void PlannedMemory::warn_of_overflow() {
  if (warned_ || context_.mesh.rank() != 0) return;
  warned_ = true;
  context_.mesh.warn({.what = fmt::format("a pass needed {} more buffers (slots) than planned",
                                          context_.memory.ledger.stats().overflow_slots),
                      .where = "the engine's memory",
                      .cause = "another forward (an evaluation, or one without a backward) needs "
                               "buffers at the same time",
                      .hint =
                          "nothing is wrong; call memory_plan() again for the larger peak, which "
                          "includes these buffers"});
}

void PlannedMemory::add_learned() {
  // planned() returns the slots of a pool, including the slots that the pool has learned. These
  // slots replace the slots of the plan. The difference is counted as learned bytes.
  std::vector<PlannedSlots> slots = context_.memory.parameter_slots.planned();
  for (const PlannedSlots& each : context_.memory.reduce_slots.planned()) slots.push_back(each);
  if (context_.updates_in_backward) {
    for (const PlannedSlots& each : context_.main->gradients.planned()) slots.push_back(each);
  }
  const auto add = [&](const PlannedSlots& each, int64_t sign) {
    const int64_t bytes = sign * each.count * each.slot_bytes;
    if (each.category == MemoryCategory::kMainGradients && context_.main->is_host()) {
      plan_.host_held_bytes += bytes;
      return;
    }
    plan_.held_bytes += bytes;
    plan_.learned_bytes += bytes;
  };
  for (const PlannedSlots& each : plan_.slots) add(each, -1);
  for (const PlannedSlots& each : slots) add(each, 1);
  plan_.slots = std::move(slots);
  const auto raise = [](MemoryBytes& planned, const MemoryBytes& learned) {
    if (learned.total() > planned.total()) planned = learned;
  };
  raise(plan_.forward_peak, learned_forward_);
  raise(plan_.backward_peak, learned_peak_);
  main_gradients_after_backward()[MemoryCategory::kMainGradients] += learned_gradients_;
  if (context_.main->is_host()) {
    plan_.host_held_bytes += learned_gradients_;
  } else {
    plan_.held_bytes += learned_gradients_;
    plan_.learned_bytes += learned_gradients_;
  }
}

MemoryBytes& PlannedMemory::main_gradients_after_backward() {
  return context_.main->is_host() ? plan_.host_peak : plan_.after_backward;
}

}  // namespace fsdp
