// The pass, boundary by boundary. Which unit is finished in backward: clock.h. Where the bytes go:
// shard/shard_unit.h. What a boundary waits for: docs/streams.md. Between passes:
// between_passes.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "engine/autograd_hooks.h"
#include "engine/engine_state.h"
#include "fsdp/error.h"
#include "fsdp/unit.h"
#include "runtime/device_error_place.h"

namespace fsdp {

// ---- forward ----

// The outermost call of this engine begins, outside backward.
void EngineState::begin_forward() {
  if (clock->in_backward()) clock->discard_stale_tasks();  // a backward that threw
  require_not_gathered("a forward");
  context->follow_compute();
  absorb_changes(/*reseats=*/true);
  unfreeze();
  forward_has_graph_ = autograd_hooks::makes_graph();
  check_touched_units();
  // Of an optimizer that is not the engine's: whatever it did is over here.
  if (steps.has_reduced() && !has_gradients()) steps.end(*context->compute);
  guard_gradients();
  forget_dropped_forwards();
  // Wait 1: what the caller wrote (parameters, gradients) is done before communication reads it.
  Event ready(context->device);
  context->compute->record(ready);
  context->gather_after(ready);
  context->begin_reading();
  memory.begin_forward();
  pass->begin_forward();
}

// Units by policy stand in modules that do not know of the engine: what these have been told is
// found here.
void EngineState::check_touched_units() {
  for (const auto& unit : units) {
    if (!unit->is_by_policy()) continue;
    unit->shard->parameters().check_seats();
    unit->follow_zero_grad();
    unit->mark_unhooked();
  }
}

// An optimizer's zero_grad takes the guards away: after a step, or between forward and backward.
void EngineState::guard_gradients() {
  for (const auto& unit : units) unit->shard->parameters().guard_gradients();
}

// The outermost call has returned; not after an exception.
void EngineState::end_forward(bool in_graph) {
  if (!in_graph) {
    for (const auto& unit : units) unit->forget_unhooked_since_mark();
  }
  context->wait_for_left_gathers();
  settle_main_state();
  context->end_reading();
}

// Who holds views of main shards reads and writes them as soon as the host gets there.
void EngineState::settle_main_state() const {
  if (!context->offloads()) return;
  const bool any_views = std::any_of(
      units.begin(), units.end(), [](const auto& unit) { return unit->shard->main().has_views(); });
  if (any_views) context->settle_transfers();
}

// A forward or backward has thrown, which the caller hears of.
void EngineState::wait_after_throw() noexcept {
  try {
    context->wait_for_left_gathers();
  } catch (const std::exception&) {
  }
}

void EngineState::pre_forward(EngineUnit& unit, ForwardCall& call) {
  context->check_limit();
  if (call.forward_task < 0) {
    call.record = pass->pre_forward(unit.index);
  } else {
    pass->pre_recompute(unit.index);
  }
  event("forward", unit);
}

void EngineState::post_forward(EngineUnit& unit, const ForwardCall& call) {
  unit.note_written();
  if (call.forward_task < 0) {
    pass->post_forward(unit.index, call.record, call.in_graph);
  } else {
    pass->post_recompute(unit.index);
  }
}

// ---- backward ----

// The first pre_backward of a pass. A graph made before the parameters changed must throw, as in
// plain torch: absorbing the change bumps the versions that it saved.
void EngineState::begin_backward() {
  context->count_thread();
  keeps_graph_ = autograd_hooks::keeps_graph();
  warn_of_unscaled_float16();
  absorb_changes(/*reseats=*/false);
  follow_zero_grads();  // since forward
  if (!pass->is_inside_forward()) memory.begin_backward(has_gradients());
  context->begin_reading();
  pass->begin_backward();
}

void EngineState::open_unit(EngineUnit& unit, bool captures) {
  if (!pass->in_backward()) begin_backward();
  context->check_limit();
  event("pre_backward", unit);
  pass->pre_backward(unit.index, captures);
}

// `captures` false: nothing was captured; gradients kept by earlier passes stay.
void EngineState::close_unit(EngineUnit& unit, bool captures) {
  unit.note_written();
  pass->close(unit.index, captures);
}

void EngineState::rest_unit(EngineUnit& unit) {
  unit.note_written();
  pass->rest(unit.index);
}

void EngineState::end_backward(bool captures) {
  pass->end_backward(captures);
  Event reduced(context->device);
  context->last_of_reduce().record(reduced);
  {
    const ExposedTimer timer(*context);
    const ContextSpan span = context->span(*context->compute, "wait for reduces", "");
    context->compute->wait(reduced);  // wait 7
  }
  for (auto& held : context->lent_held) held.clear();
  context->wait_for_left_gathers();
  settle_main_state();
  context->end_reading();
}

// The end of the outermost graph task: everything of this pass is closed.
void EngineState::finalize_backward() {
  if (!pass->in_backward()) return;
  const bool captures = clock->captures();
  const bool goes_on = pass->is_inside_forward();
  with_place([] { return "end of backward"; }, [&] { end_backward(captures); });
  if (goes_on) {  // [Note: a backward inside a forward] in pass.h
    if (captures && pass->reduces()) ++passes;
    return;
  }
  forget_records();
  for (const auto& unit : units) unit->forget_unhooked();
  const bool is_new = pass->take_record(captures);
  guard_gradients();
  if (!captures) return;
  if (pass->reduces()) {
    ++passes;
    steps.note_reduced();
  }
  if (is_new) {
    memory.follow(*pass);
  } else {
    memory.learn_from_overflow(*pass);
  }
  if (!strays.is_done() && !keeps_graph_) refuse_strays();
}

// A backward threw: nothing is communicated any more, and nothing half-captured survives.
void EngineState::abandon_backward() {
  if (!pass->is_inside_forward()) {
    forget_records();
    for (const auto& unit : units) unit->forget_unhooked();
  }
  try {
    pass->abandon();
  } catch (const DeviceError&) {  // the device is lost, of which backward throws already
  }
  wait_after_throw();
}

}  // namespace fsdp
