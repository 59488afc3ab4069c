#include "engine/engine_unit.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "engine/autograd_hooks.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"
#include "shard/main_gradients.h"

namespace fsdp {

EngineUnit::EngineUnit(EngineParts& engine_parts, ScheduledEngine& engine, OnGradient on_gradient,
                       Place in_model, std::unique_ptr<TouchedUnit> touched,
                       std::unique_ptr<ShardUnit> bytes)
    : ScheduledUnit{.engine = &engine, .index = in_model.index, .calls = {}, .state = {}},
      owner(engine_parts),
      place(std::move(in_model)),
      on_gradient_(std::move(on_gradient)),
      touched_(std::move(touched)),
      shard(std::move(bytes)) {
  touched_->unit = this;
}

void EngineUnit::capture_gradients() {
  accumulators_.resize(shard->tensors().size());
  for (size_t i = 0; i < shard->tensors().size(); ++i) {
    const int parameter = static_cast<int>(i);
    // torch::load may replace a parameter's accumulator, which removes the hook. Then a hook is
    // installed again.
    if (accumulators_[i] && autograd_hooks::is_current(*accumulators_[i], shard->tensors()[i])) {
      continue;
    }
    if (!shard->tensors()[i].requires_grad()) continue;
    // The hook holds the unit weakly, because a graph and its node may outlive the engine.
    accumulators_[i] = autograd_hooks::capture_gradients(
        shard->tensors()[i], [unit = weak_from_this(), parameter](const at::Tensor& gradient) {
          if (const auto alive = unit.lock()) alive->on_gradient_(*alive, parameter, gradient);
        });
  }
}

void EngineUnit::refuse_captured() const {
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (!accumulators_[i] || !autograd_hooks::is_captured(*accumulators_[i])) continue;
    throw StateError(
        {.what = fmt::format(
             "autograd::grad with respect to the sharded parameter '{}' is not supported",
             shard->layout().parameters()[i].fqn),
         .where = name_of_unit(shard->fqn()),
         .cause = "it would return this rank's own gradient, not reduced over the ranks",
         .hint = "call backward() and read `local.grad()` of Engine::sharded_parameters()"});
  }
}

bool EngineUnit::unfreeze() {
  bool any = false;
  for (size_t i = 0; i < shard->tensors().size(); ++i) {
    // A parameter with an accumulator has required a gradient before, so it was not unfrozen now.
    if (accumulators_[i] || !shard->tensors()[i].requires_grad()) continue;
    shard->unfreeze(static_cast<int>(i));
    any = true;
  }
  if (!any) return false;
  capture_gradients();
  return true;
}

void EngineUnit::note_written() {
  // Only bound parameters have memory that can be written. If the parameter is the main shard
  // itself, the write is kept: it is the parameter's new value.
  if (!written_.empty() || shard->parameters().state() != ParameterState::kUnsharded) return;
  if (shard->parameters().keeps_writes()) {
    shard->parameters().take_kept_writes();
  } else {
    written_ = shard->parameters().first_written();
  }
}

void EngineUnit::throw_if_written() {
  if (written_.empty()) return;
  // written_ is cleared before the throw, so that a caller that catches the error can continue.
  const std::string fqn = std::exchange(written_, {});
  throw StateError(
      {.what = fmt::format("parameter '{}' was written inside a forward or backward", fqn),
       .where = name_of_unit(shard->fqn()),
       .cause = "a sharded parameter is whole only while its unit runs; the change would be lost, "
                "or only this rank would keep it",
       .hint = "change parameters between steps, through Engine::sharded_parameters() or "
               "fsdp::Gathered with fsdp::WriteBack; also renormalise embeddings (max_norm) "
               "between steps"});
}

void EngineUnit::take_gradient(int parameter, const at::Tensor& gradient) {
  const std::string& fqn = shard->layout().parameters()[parameter].fqn;
  // A unit whose parameters are all empty is never in the capturing state, because its gradients
  // have no bytes.
  const bool captures =
      shard->gradients().state() == GradientState::kCapturing || !shard->layout().has_trainable();
  // This check is not an assertion that release builds omit, because a gradient that arrives after
  // the reduction would be lost silently.
  if (!is_open() || !captures) {
    throw StateError(
        {.what =
             fmt::format("the gradient of parameter '{}' arrived after the backward of {} ended",
                         fqn, name_of_unit(shard->fqn())),
         .hint =
             "let the unit's forward return every tensor that the loss uses, including auxiliary "
             "losses; use the unit's parameters only inside its forward, on one thread"});
  }
  with_place([&] { return describe("backward"); },
             [&] { shard->gradients().capture(parameter, gradient); });
}

void EngineUnit::require_no_autocast(const at::Device& device) const {
  // Meta devices are excluded first, because LibTorch throws if it is queried for their autocast
  // state.
  if (device.is_meta() || !at::autocast::is_autocast_enabled(device.type())) return;
  throw StateError({.what = "a sharded unit was called under autocast",
                    .where = name_of_unit(shard->fqn()),
                    .cause = "autocast would keep its copies of the parameters after the unit's "
                             "forward, when the parameters are sharded again",
                    .hint = "disable autocast and set the dtype with Options::mixed_precision"});
}

bool EngineUnit::is_inside(const ScheduledUnit& other) const {
  const EngineUnit* at = this;
  while (at != &other && at->place.parent != nullptr) at = at->place.parent;
  return at == &other;
}

void EngineUnit::keep_unhooked(const std::shared_ptr<Call>& call) {
  if (unhooked_.empty() || unhooked_.back() != call) unhooked_.push_back(call);
}

void EngineUnit::forget_unhooked_since_mark() {
  if (unhooked_.size() > marked_) unhooked_.resize(marked_);
}

bool EngineUnit::fire_unhooked(BackwardScheduler& scheduler, int task, uint64_t sequence) {
  // Returns the last call that began at or before node `begun_by`, whose pre_backward has not run
  // in this task, and whose forward ran in the task around this one or outside backward.
  const auto newest = [&](uint64_t begun_by) -> std::shared_ptr<Call> {
    for (auto call = unhooked_.rbegin(); call != unhooked_.rend(); ++call) {
      if ((*call)->begin > begun_by || (*call)->fired_task == task) continue;
      if (scheduler.runs_in(task, (*call)->forward_task)) return *call;
    }
    return nullptr;
  };
  constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
  std::shared_ptr<Call> call = newest(sequence);
  if (!call) {
    // TorchScript's DifferentiableGraph is one autograd node for the forwards of several units. It
    // is created before the calls of these units, so its sequence number is lower than theirs. With
    // the highest number instead, BackwardScheduler::tick does not take these calls as finished.
    sequence = kAny;
    call = newest(kAny);
  }
  if (call) scheduler.pre_backward(*call, task, sequence);
  return call != nullptr;
}

void EngineUnit::follow_zero_grad() {
  switch (shard->parameters().guards()) {
    case ParameterBindings::Guards::kThere:
      return;
    case ParameterBindings::Guards::kGone:
      return shard->gradients().zero();
    case ParameterBindings::Guards::kSomeGone:
      refuse_cleared_gradients(shard->fqn(),
                               "all gradients of a unit must be set or cleared together");
  }
}

void EngineUnit::require_complete_gradients() const {
  const auto refuse = [&](std::string_view what, std::string_view sync) {
    throw StateError(
        {.what = fmt::format("cannot step while gradients wait to be {}", what),
         .where = name_of_unit(shard->fqn()),
         .cause = fmt::format("all backwards since the last step ran under {}", sync),
         .hint = "run the last backward of a step outside of GradSync, or call zero_grad"});
  };
  const UnitGradients& gradients = shard->gradients();
  if (gradients.await_across()) {
    refuse("summed over groups of ranks", "GradSync(GradientSync::kInside)");
  }
  if (gradients.state() == GradientState::kKept) refuse("reduced", "GradSync(false)");
  gradients.require_unmixed();
}

std::string EngineUnit::describe(std::string_view what) const {
  return fmt::format("{} of {}", what, name_of_unit(shard->fqn()));
}

}  // namespace fsdp
