#include "engine/engine_pass.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "comm/mesh_state.h"
#include "engine/autograd_hooks.h"
#include "engine/start_warnings.h"
#include "fsdp/error.h"
#include "libtorch/torch_cuda.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// The spans of a running forward, for traces and NVTX.
struct ForwardSpans {
  ForwardSpans(ShardContext& context, const EngineUnit& unit, std::string_view what)
      : span(context.spans, *context.streams.compute, SpanLane::kCompute, what, unit.shard->fqn()),
        range(context.streams.torch_device, "forward", unit.shard->fqn()) {}

  StreamSpan span;
  torch_cuda::NamedRange range;
};

// Runs `body`. A DeviceError names the action and the unit.
template <class Body>
decltype(auto) in_unit(const EngineUnit& unit, std::string_view what, const Body& body) {
  return with_place([&] { return unit.describe(what); }, body);
}

}  // namespace

std::vector<const EnginePass*> passes_of(const BackwardScheduler& scheduler) {
  std::vector<const EnginePass*> passes;
  for (const ScheduledEngine* engine : scheduler.engines()) {
    passes.push_back(static_cast<const EnginePass*>(engine));
  }
  return passes;
}

void EnginePass::make_schedule(std::vector<UnitRules> rules, PassRecord hint) {
  schedule_ = std::make_unique<Pass>(*this, std::move(rules), std::move(hint),
                                     parts_.model.options.keep_last_units, parts_.updates.are_on());
}

void EnginePass::event(std::string_view name, int unit) const {
  if (observer_) observer_(name, unit_at(unit).shard->fqn());
}

// ---- forward ----

void EnginePass::begin_forward() {
  if (parts_.scheduler.in_backward())
    parts_.scheduler.discard_stale_tasks();  // left by a backward that threw
  require_not_gathered("a forward");
  parts_.context.memory.count_thread();
  parts_.context.streams.follow_compute();
  parts_.model.sync_changes(parts_.context.main->stream(), /*rebinds=*/true);
  unfreeze();
  forward_has_graph_ = autograd_hooks::makes_graph();
  parts_.model.check_touched_units();
  // A LibTorch optimizer does not report its step. Cleared gradients show that the step has ended.
  if (parts_.steps.has_reduced() && !parts_.model.has_gradients() && !parts_.updates.are_on())
    parts_.steps.end(*parts_.context.streams.compute);
  parts_.model.guard_gradients();
  forget_dropped_forwards();
  // Wait 1 (docs/streams.md): communication reads parameters and gradients only after compute has
  // finished the caller's writes to them.
  Event ready(parts_.context.streams.device);
  parts_.context.streams.compute->record(ready);
  parts_.context.streams.gather_after(ready);
  parts_.context.peers.begin();
  parts_.memory.begin_forward();
  schedule_->begin_forward();
}

// Compute waits for unused prefetches, because the caller may write main shards next. Calls that no
// backward can reach are dropped.
void EnginePass::end_forward(bool in_graph) {
  if (!in_graph) {
    for (const auto& unit : parts_.model.units) unit->forget_unhooked_since_mark();
  }
  parts_.context.streams.wait_for_left_gathers();
  settle_main_state();
  parts_.context.peers.end();
}

// Waits on the host if the caller holds views of main shards, because no stream orders the host's
// accesses.
void EnginePass::settle_main_state() const {
  if (parts_.model.has_views()) parts_.context.main->settle();
}

// Waits for prefetches. Drops an error of this wait, because the caller gets the error of the pass.
void EnginePass::wait_after_throw() noexcept {
  try {
    parts_.context.streams.wait_for_left_gathers();
  } catch (const std::exception&) {
  }
}

void EnginePass::begin_call(EngineUnit& unit, const std::shared_ptr<Call>& call) {
  const auto in_forward = [&] { return unit.describe("forward"); };
  const bool again = call->forward_task >= 0;
  with_place(in_forward, [&] {
    parts_.context.memory.check_limit();
    if (again) {
      schedule_->pre_recompute(unit.index);
    } else {
      call->record = schedule_->pre_forward(unit.index);
    }
    event("forward", unit.index);
  });
  // The call is pushed after its gather, so a gather that throws leaves no call behind.
  parts_.scheduler.push_call(call);
  call->runs = true;
  with_place(in_forward, [&] {
    call->spans =
        std::make_shared<const ForwardSpans>(parts_.context, unit, again ? "recompute" : "forward");
  });
}

void EnginePass::end_call(EngineUnit& unit, const Call& call) {
  unit.note_written();
  if (call.forward_task < 0) {
    schedule_->post_forward(unit.index, call.record, call.in_graph);
  } else {
    schedule_->post_recompute(unit.index);
  }
}

void EnginePass::end_forward(int unit, Call& call, bool failed) {
  EngineUnit& ended = unit_at(unit);
  call.runs = false;
  call.spans.reset();
  try {
    in_unit(ended, "forward", [&] { end_call(ended, call); });
  } catch (const DeviceError&) {  // ignored if forward already throws another error
    if (!failed) throw;
  }
  if (failed) ended.forget_written();  // not reported, because forward throws its own error
  ended.throw_if_written();
}

void EnginePass::follow_compute(const EngineUnit& unit, bool may_change) {
  if (parts_.context.streams.computes_here()) return;
  if (may_change) {
    parts_.context.memory.count_thread();
    return parts_.context.streams.follow_compute();
  }
  throw StateError({.what = "a unit was called on another CUDA stream than the model's forward",
                    .where = name_of_unit(unit.shard->fqn()),
                    .cause = "its parameters are only valid for work on the forward's stream",
                    .hint = "set the stream before the model's forward, not inside the model"});
}

// ---- backward ----

// Runs at the first pre_backward of a pass. As in plain LibTorch, backward must throw if parameters
// changed after its graph was made: sync_changes increments the versions that the graph saved.
void EnginePass::begin_backward(bool captures) {
  parts_.context.memory.count_thread();
  keeps_graph_ = autograd_hooks::keeps_graph();
  if (captures && parts_.updates.are_on()) {
    require_not_gathered("a backward that updates weights");
    parts_.updates.begin_backward(schedule_->is_inside_forward());
  }
  if (!std::exchange(looked_for_scaler_, true)) warn_of_unscaled(parts_.model, parts_.context);
  parts_.model.sync_changes(parts_.context.main->stream(), /*rebinds=*/false);
  parts_.model.follow_zero_grads();  // zero_grad may have run since forward
  if (!schedule_->is_inside_forward()) parts_.memory.begin_backward(parts_.model.has_gradients());
  parts_.context.peers.begin();
  schedule_->begin_backward();
}

void EnginePass::take_gradient(EngineUnit& unit, int parameter, const at::Tensor& gradient) {
  const std::lock_guard lock(parts_.scheduler.mutex);
  const std::string& fqn = unit.shard->layout().parameters()[parameter].fqn;
  if (autograd_hooks::inputs_given()) {
    throw StateError(
        {.what = fmt::format("backward(inputs) was called with the sharded parameter '{}'", fqn),
         .where = name_of_unit(unit.shard->fqn()),
         .hint = "call backward() without inputs; freeze parameters that need no gradient"});
  }
  if (!parts_.scheduler.captures()) {
    throw StateError(
        {.what = fmt::format("autograd::grad is not supported through a recomputed forward of {}",
                             name_of_unit(unit.shard->fqn())),
         .cause = "recomputation runs its own backward, for all parameters",
         .hint = "call backward(), or do not recompute this forward"});
  }
  // A custom Function may compute a gradient without reading a parameter. Then no earlier event has
  // shown that backward has reached this unit, so the unit is opened here.
  if (unit.is_by_policy() && !unit.is_open()) {
    unit.fire_unhooked(parts_.scheduler, autograd_hooks::current_task(),
                       autograd_hooks::current_sequence());
  }
  if (!unit.is_open()) parts_.scheduler.fire_running(unit, autograd_hooks::current_task());
  const bool is_sole = on_gradient_ && ZeroCopyGradients::is_sole(gradient);
  unit.take_gradient(parameter, gradient);
  if (on_gradient_) on_gradient_(unit.index, parameter, gradient, is_sole);
}

void EnginePass::open(int unit, bool captures) {
  EngineUnit& opened = unit_at(unit);
  if (!captures) opened.refuse_captured();
  in_unit(opened, "backward", [&] {
    follow_compute(opened, /*may_change=*/true);
    if (!opened.span) {
      opened.span.emplace(parts_.context.spans, *parts_.context.streams.compute,
                          SpanLane::kBackward, "backward", opened.shard->fqn());
    }
    if (!schedule_->in_backward()) begin_backward(captures);
    parts_.context.memory.check_limit();
    event("pre_backward", unit);
    schedule_->pre_backward(unit, captures);
  });
}

// If `captures` is false, this backward captured nothing and leaves earlier gradients unchanged.
void EnginePass::close(int unit, bool captures) {
  EngineUnit& closed = unit_at(unit);
  in_unit(closed, "backward", [&] {
    closed.note_written();
    schedule_->close(unit, captures);
  });
  closed.span.reset();
  closed.throw_if_written();
}

void EnginePass::idle(int unit) {
  in_unit(unit_at(unit), "backward", [&] {
    unit_at(unit).note_written();
    schedule_->idle(unit);
  });
}

void EnginePass::abandon(int unit) {
  EngineUnit& abandoned = unit_at(unit);
  abandoned.span.reset();
  abandoned.forget_written();  // not reported, because backward throws its own error
  try {
    abandoned.shard->gradients().abandon();
    const bool is_bound = abandoned.shard->parameters().state() != ParameterState::kSharded;
    if (is_bound && schedule_->active_calls(unit) == 0) reshard(unit);
  } catch (const DeviceError&) {  // ignored: backward already throws another error
  }
}

void EnginePass::end_backward(bool captures) {
  schedule_->end_backward(captures);
  Event reduced(parts_.context.streams.device);
  parts_.context.main->last_of_reduce().record(reduced);
  {
    const ExposedTimer timer(parts_.context.streams);
    const ContextSpan span =
        parts_.context.streams.span(*parts_.context.streams.compute, "wait for reduces", "");
    parts_.context.streams.compute->wait(reduced);  // wait 7
  }
  // As compute waits for all reductions, LibTorch may reuse the memory of zero-copy gradients.
  for (auto& held : parts_.context.zero_copy.held) held.clear();
  parts_.context.streams.wait_for_left_gathers();
  settle_main_state();
  parts_.context.peers.end();
  parts_.updates.end_backward();
}

// Runs at the end of the outermost graph task, when all units of the pass are closed.
void EnginePass::finalize_backward() {
  if (!schedule_->in_backward()) return;
  const bool captures = parts_.scheduler.captures();
  const bool goes_on = schedule_->is_inside_forward();
  with_place([] { return "end of backward"; }, [&] { end_backward(captures); });
  if (goes_on) {  // the forward continues: [Note: a backward inside a forward] in pass.h
    if (captures && schedule_->reduces()) ++count_;
    return;
  }
  parts_.model.forget_records();
  for (const auto& unit : parts_.model.units) unit->forget_unhooked();
  const bool is_new = schedule_->take_record(captures);
  parts_.model.guard_gradients();
  if (!captures) return;
  if (schedule_->reduces()) {
    ++count_;
    parts_.steps.note_reduced();
  }
  if (is_new) {
    parts_.memory.follow(*schedule_);
  } else {
    parts_.memory.learn_from_overflow(*schedule_);
  }
  if (!unregistered_.is_done() && !keeps_graph_) unregistered_.refuse(*parts_.model.root);
}

// Runs after a backward threw. It drops incomplete gradients and issues no collective, because the
// other ranks may have thrown at another position, or not at all.
void EnginePass::abandon_backward() {
  if (!schedule_->is_inside_forward()) {
    parts_.model.forget_records();
    for (const auto& unit : parts_.model.units) unit->forget_unhooked();
  }
  parts_.updates.abandon_backward();
  try {
    schedule_->abandon();
  } catch (const DeviceError&) {  // ignored: backward already throws another error
  }
  wait_after_throw();
}

// ---- actions that the schedule requests ----

bool EnginePass::unshard(int unit, Urgency urgency) {
  // kDemand reports the event before the gather, kPrefetch only after a gather was issued.
  if (urgency == Urgency::kDemand) {
    if (schedule_->is_updated(unit)) UnitUpdates::refuse_use(unit_at(unit));
    event("unshard", unit);
  }
  const bool unshards = in_unit(unit_at(unit), "gather",
                                [&] { return unit_at(unit).shard->parameters().unshard(urgency); });
  if (urgency == Urgency::kPrefetch && unshards) event("unshard", unit);
  return unshards;
}

void EnginePass::reshard(int unit) {
  event("reshard", unit);
  unit_at(unit).shard->parameters().reshard();
}

void EnginePass::open_gradients(int unit, GradientSync sync) {
  if (schedule_->is_updated(unit)) UnitUpdates::refuse_use(unit_at(unit));
  parts_.memory.expect_captures(*schedule_);
  unit_at(unit).shard->gradients().open(sync);
}

void EnginePass::keep_gradients(int unit) {
  parts_.memory.expect_kept_gradients();
  unit_at(unit).shard->gradients().keep();
}

void EnginePass::reduce(int unit, bool across) {
  event("reduce", unit);
  in_unit(unit_at(unit), "reduce", [&] { unit_at(unit).shard->gradients().reduce(across); });
}

void EnginePass::sum_across(int unit) {
  UnitGradients& gradients = unit_at(unit).shard->gradients();
  if (!gradients.await_across()) return;
  event("reduce", unit);
  in_unit(unit_at(unit), "reduce", [&] { gradients.sum_across(); });
}

void EnginePass::update(int unit) {
  event("update", unit);
  in_unit(unit_at(unit), "update in backward", [&] { parts_.updates.update(unit_at(unit)); });
}

// ---- between passes ----

void EnginePass::require_not_gathered(std::string_view call) const {
  if (gathered_ == 0) return;
  throw StateError({.what = fmt::format("{} is not allowed while parameters are gathered", call),
                    .cause = "a write to the gathered parameters would be lost or would overwrite "
                             "the result of this call",
                    .hint = "end the scope of fsdp::Gathered first"});
}

// Creates gradient state for parameters that were frozen and now require a gradient. If ranks
// unfroze different parameters, the next reduction throws.
void EnginePass::unfreeze() {
  bool any = false;
  for (const auto& unit : parts_.model.units) any = unit->unfreeze() || any;
  if (any) parts_.memory.remake(*schedule_);
}

void EnginePass::look_for_unregistered(const std::vector<at::Tensor>& inputs,
                                       const std::vector<at::Tensor>& leaves) {
  std::vector<const ShardedModel*> models;  // forwards of several engines may be nested
  for (const EnginePass* each : passes_of(parts_.scheduler)) models.push_back(&each->parts_.model);
  unregistered_.collect(leaves, inputs, models);
}

// Removes recorded forwards whose outputs were dropped. Their graphs and calls no longer exist.
void EnginePass::forget_dropped_forwards() {
  if (!schedule_->is_long()) return;
  const std::vector<Call*> alive = parts_.model.recorded_calls();
  std::vector<int> records;
  for (const Call* call : alive) records.push_back(call->record);
  schedule_->keep_only(records);
  for (size_t i = 0; i < alive.size(); ++i) alive[i]->record = static_cast<int>(i);
}

}  // namespace fsdp
