// The pass, boundary by boundary. Which unit is finished in backward: clock.h. Where the bytes go:
// shard/shard_unit.h. What a boundary waits for: docs/streams.md.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "engine/engine_state.h"
#include "fsdp/error.h"
#include "fsdp/unit.h"
#include "shard/memory_plan.h"

namespace fsdp {

// ---- forward ----

// The outermost call of this engine begins, outside backward.
void EngineState::begin_forward() {
  if (clock->in_backward()) clock->discard_stale_tasks();  // a backward that threw
  absorb_changes();
  check_idle_passes();
  check_frozen();
  // Wait 1: what the caller wrote (parameters, gradients) is done before communication reads it.
  Event ready;
  lanes->compute->record(ready);
  lanes->gather_stream->wait(ready);
  lanes->reduce_stream->wait(ready);
  lanes->begin_reading();
  schedule->begin_forward();
  forward_in_graph_ = false;
}

// The outermost call has returned; not after an exception.
void EngineState::end_forward() { lanes->end_reading(); }

void EngineState::pre_forward(EngineUnit& unit) {
  const bool recomputes = clock->in_backward();
  if (unit.shard->state() == ShardUnit::State::kSharded) {
    event("unshard", unit);
    unit.shard->unshard(ShardUnit::Urgency::kDemand);
  }
  if (recomputes) schedule->needed_in_backward(unit.index);
  prefetch(recomputes ? schedule->ahead_in_backward(unit.rules.prefetch_units)
                      : schedule->ahead_in_forward(unit.rules.prefetch_units));
  demand(unit);
  ++unit.active_calls;
  ++active_calls;
  event("forward", unit);
}

void EngineState::post_forward(EngineUnit& unit, bool in_graph) {
  --unit.active_calls;
  --active_calls;
  forward_in_graph_ = forward_in_graph_ || in_graph;
  // A unit recomputed in backward stays: its own backward follows at once.
  if (clock->in_backward() || unit.active_calls > 0) return;
  if (active_calls > 0) {
    if (unit.rules.reshard_after_forward) reshard(unit);
    return;
  }
  // The end of the outermost call. With a graph its unit, the root, stays for backward, and so do
  // units that were asked to; without one, everything goes: an optimizer step may follow.
  for (const auto& each : units) {
    const bool stays = in_graph && (each.get() == &unit || !each->rules.reshard_after_forward);
    if (!stays) reshard(*each);
  }
  if (!forward_in_graph_) schedule->drop_forward();
}

void EngineState::demand(EngineUnit& unit) {
  if (unit.shard->state() == ShardUnit::State::kSharded) {
    event("unshard", unit);
    unit.shard->unshard(ShardUnit::Urgency::kDemand);
  }
  if (unit.shard->state() == ShardUnit::State::kGathering) unit.shard->wait_for_unshard();
}

// Issues gathers ahead of their use, as far as planned slots are free. Never waits.
void EngineState::prefetch(const std::vector<int>& ahead) {
  for (const int index : ahead) {
    EngineUnit& unit = *units[index];
    const bool wanted = !clock->in_backward() || unit.rules.unshard_in_backward;
    if (!wanted || !lanes->shards_parameters()) continue;
    if (unit.shard->state() != ShardUnit::State::kSharded) continue;
    if (unit.shard->unshard(ShardUnit::Urgency::kPrefetch)) event("unshard", unit);
  }
}

void EngineState::reshard(EngineUnit& unit) {
  if (unit.shard->state() == ShardUnit::State::kSharded) return;
  event("reshard", unit);
  unit.shard->reshard();
}

// ---- backward ----

// The first pre_backward of a pass. A graph made before the parameters changed must throw, as in
// plain torch: absorbing the change bumps the versions that it saved.
void EngineState::begin_backward() {
  in_pass = true;
  absorb_changes();
  lanes->begin_reading();
  schedule->begin_backward();
}

void EngineState::open_unit(EngineUnit& unit, const Call& call, bool captures) {
  if (!in_pass) begin_backward();
  event("pre_backward", unit);
  schedule->fired(call.record);
  schedule->needed_in_backward(unit.index);
  const bool needs_weights = unit.rules.unshard_in_backward;
  if (needs_weights && unit.shard->state() == ShardUnit::State::kSharded) {
    event("unshard", unit);
    unit.shard->unshard(ShardUnit::Urgency::kDemand);
  }
  prefetch(schedule->ahead_in_backward(unit.rules.prefetch_units));
  if (needs_weights) demand(unit);
  if (captures) unit.shard->open_gradients(reduces_gradients);
}

void EngineState::close_unit(EngineUnit& unit, bool reduces) {
  reshard(unit);
  if (!reduces) return;  // nothing was captured; gradients kept by earlier passes stay
  if (unit.shard->gradient_state() != ShardUnit::GradientState::kCapturing) return;
  if (!reduces_gradients) return unit.shard->keep_gradients();
  event("reduce", unit);
  unit.shard->reduce();
}

void EngineState::rest_unit(EngineUnit& unit) { reshard(unit); }

// The end of the outermost graph task: everything of this pass is closed.
void EngineState::finalize_backward() {
  if (!in_pass) return;
  in_pass = false;
  const bool captures = clock->captures();
  for (const auto& unit : units) {
    // What only recomputation or a prefetch has gathered, and units that stay between forward and
    // backward.
    reshard(*unit);
    // Gradients kept by passes without reduction, of units that this pass did not touch.
    const bool kept = unit->shard->gradient_state() == ShardUnit::GradientState::kKept;
    if (kept && captures && reduces_gradients) {
      event("reduce", *unit);
      unit->shard->reduce();
    }
  }
  Event reduced;
  lanes->reduce_stream->record(reduced);
  {
    const ExposedTimer timer(*lanes);
    const StreamSpan span = lanes->span(*lanes->compute, "wait for reduces", "");
    lanes->compute->wait(reduced);  // wait 7
  }
  lanes->end_reading();
  if (!captures) return schedule->abandon_pass();
  if (reduces_gradients) {
    ++passes;
    ++idle_passes_;
  }
  if (schedule->end_pass()) remake_plan();
}

// A backward threw: nothing is communicated any more, and nothing half-captured survives.
void EngineState::abandon_backward() {
  const bool failed = std::exchange(in_pass, false);
  schedule->abandon_pass();
  for (const auto& unit : units) {
    if (unit->active_calls > 0) continue;
    if (failed) unit->shard->abandon_gradients();
    reshard(*unit);
  }
}

// ---- between passes ----

// Parameters changed by an optimizer, a load or the user: seated ones are dropped, graphs that
// saved them will throw, resident copies are made anew.
void EngineState::absorb_changes() {
  for (const auto& unit : units) {
    if (unit->shard->absorb_changes()) idle_passes_ = 0;
  }
}

void EngineState::zero_grad() {
  const std::lock_guard lock(clock->mutex);
  idle_passes_ = 0;
  for (const auto& unit : units) unit->shard->zero_grad();
}

// Gradients that nobody uses: the parameters of the module have none, an optimizer that holds them
// does nothing, in silence.
void EngineState::check_idle_passes() const {
  if (options.idle_passes_limit <= 0 || idle_passes_ < options.idle_passes_limit) return;
  throw StateError(
      {.what = fmt::format("{} backwards have reduced gradients, but no parameter was changed and "
                           "zero_grad was not called",
                           idle_passes_),
       .where = {},
       .cause = {},
       .hint = "give the optimizer Engine::sharded_parameters() instead of model->parameters(), or "
               "use fsdp::AdamW or fsdp::SGD; to accumulate over more backwards, raise "
               "Options::idle_passes_limit"});
}

void EngineState::check_frozen() const {
  for (const auto& unit : units) {
    const ShardLayout& layout = unit->shard->layout();
    for (size_t i = 0; i < unit->shard->parameters().size(); ++i) {
      const bool frozen = !layout.segments()[layout.segment_of(static_cast<int>(i))].trainable;
      if (!frozen || !unit->shard->parameters()[i].requires_grad()) continue;
      throw StateError(
          {.what = fmt::format("parameter '{}' was frozen when the engine was built and "
                               "now requires a gradient",
                               layout.parameters()[i].fqn),
           .where = fmt::format("unit '{}'", unit->shard->fqn()),
           .cause = {},
           .hint = "set requires_grad before constructing the engine, or construct it anew"});
    }
  }
}

void EngineState::add_optimizer_state(int64_t bytes) {
  const std::lock_guard lock(clock->mutex);
  optimizer_state_bytes_ += bytes;
  if (bytes > 0) {
    lanes->ledger.hold(bytes);
    lanes->ledger.take(MemoryCategory::kOptimizerState, bytes);
  } else {
    lanes->ledger.hold(bytes);
    lanes->ledger.give(MemoryCategory::kOptimizerState, -bytes);
  }
  remake_plan();
}

void EngineState::mark_changed(bool copies_written) {
  const std::lock_guard lock(clock->mutex);
  for (const auto& unit : units) unit->shard->mark_changed(copies_written);
}

// Slots follow the order of units that was seen last.
void EngineState::remake_plan() {
  MemoryInputs inputs{.units = {},
                      .optimizer_state_bytes = optimizer_state_bytes_,
                      .streams_overlap = !lanes->reduce_stream->is_inline()};
  std::vector<UnitRules> rules;
  std::map<int64_t, int64_t> gradients;  // main gradients by size
  for (const auto& unit : units) {
    const ShardUnit& shard = *unit->shard;
    const ShardLayout& layout = shard.layout();
    inputs.units.push_back(
        {.parameter_slot_bytes = shard.parameter_slot_bytes(),
         .reduce_slot_bytes = shard.reduce_slot_bytes(),
         .main_shard_bytes = layout.slice_numel() * size_of(DType::kFloat32),
         .main_gradient_bytes = layout.trainable_slice_numel() * size_of(DType::kFloat32),
         .resident_bytes = shard.resident_bytes(),
         .kept_gradient_bytes = shard.kept_gradient_bytes()});
    rules.push_back(unit->rules);
    for (const SegmentLayout& segment : layout.segments()) {
      if (segment.trainable) ++gradients[segment.slice_numel * size_of(DType::kFloat32)];
    }
  }
  plan = play_memory(inputs, schedule->memory_events(rules));
  std::map<int64_t, int64_t> parameter_slots, reduce_slots;
  for (const PlannedSlots& slots : plan.slots) {
    const bool parameters = slots.category == MemoryCategory::kParameterSlots;
    (parameters ? parameter_slots : reduce_slots)[slots.slot_bytes] = slots.count;
  }
  lanes->parameter_slots.plan(parameter_slots);
  lanes->reduce_slots.plan(reduce_slots);
  lanes->main_gradients.plan(gradients);
}

}  // namespace fsdp
