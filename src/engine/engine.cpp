// The pass, boundary by boundary. Which unit is finished in backward: clock.h. Where the bytes go:
// shard/shard_unit.h. What a boundary waits for: docs/streams.md. Between passes:
// between_passes.cpp.
#include <fmt/format.h>

#include <utility>

#include "engine/autograd_hooks.h"
#include "engine/engine_state.h"
#include "fsdp/error.h"
#include "fsdp/unit.h"

namespace fsdp {

// ---- forward ----

// The outermost call of this engine begins, outside backward.
void EngineState::begin_forward() {
  if (clock->in_backward()) clock->discard_stale_tasks();  // a backward that threw
  require_not_gathered("a forward");
  absorb_changes(/*reseats=*/true);
  unfreeze();
  for (const auto& unit : units) unit->shard->guard_gradients();
  forget_dropped_forwards();
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
  unit.note_written();
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
  keeps_graph_ = autograd_hooks::keeps_graph();
  lanes->ledger.begin_phase();
  absorb_changes(/*reseats=*/false);
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
  unit.note_written();
  reshard(unit);
  if (!reduces) return;  // nothing was captured; gradients kept by earlier passes stay
  if (unit.shard->gradient_state() != ShardUnit::GradientState::kCapturing) return;
  if (!reduces_gradients) {
    keeps_gradients_ = true;
    return unit.shard->keep_gradients();
  }
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
  forget_records();
  if (!captures) return schedule->abandon_pass();
  if (reduces_gradients) ++passes;
  if (schedule->end_pass()) {
    learned_gradients_ = 0;
    learned_peak_ = {};
    remake_plan();
  } else {
    learn_from_overflow();
  }
  if (!strays.is_done() && !keeps_graph_) refuse_strays();
}

// A backward threw: nothing is communicated any more, and nothing half-captured survives.
void EngineState::abandon_backward() {
  const bool failed = std::exchange(in_pass, false);
  forget_records();
  schedule->abandon_pass();
  for (const auto& unit : units) {
    if (unit->active_calls > 0) continue;
    if (failed) unit->shard->abandon_gradients();
    reshard(*unit);
  }
}

}  // namespace fsdp
