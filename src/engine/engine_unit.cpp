#include "engine/engine_unit.h"

#include <fmt/format.h>

#include <utility>

#include "engine/autograd_hooks.h"
#include "engine/engine_state.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {

EngineUnit::EngineUnit(EngineState& owner, int unit_index, std::optional<DType> cast_inputs_to,
                       std::unique_ptr<TouchedUnit> touched, std::unique_ptr<ShardUnit> bytes)
    : engine(owner),
      index(unit_index),
      touched_(std::move(touched)),
      shard(std::move(bytes)),
      input_dtype(cast_inputs_to) {
  touched_->unit = this;
}

void EngineUnit::capture_gradients() {
  accumulators_.resize(shard->tensors().size());
  for (size_t i = 0; i < shard->tensors().size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (accumulators_[i] && autograd_hooks::is_current(*accumulators_[i], shard->tensors()[i])) {
      continue;
    }
    if (!shard->tensors()[i].requires_grad()) continue;
    accumulators_[i] = autograd_hooks::capture_gradients(
        shard->tensors()[i], [unit = weak_from_this(), parameter](const at::Tensor& gradient) {
          if (const auto alive = unit.lock()) alive->on_gradient(parameter, gradient);
        });
  }
}

bool EngineUnit::unfreeze() {
  bool any = false;
  for (size_t i = 0; i < shard->tensors().size(); ++i) {
    if (accumulators_[i] || !shard->tensors()[i].requires_grad()) continue;
    shard->unfreeze(static_cast<int>(i));
    any = true;
  }
  if (!any) return false;
  capture_gradients();
  return true;
}

void EngineUnit::follow_compute(bool may_change) {
  if (engine.context->computes_here()) return;
  if (may_change) return engine.context->follow_compute();
  throw StateError({.what = "a unit was called on another stream than the model's forward",
                    .where = name_of_unit(shard->fqn()),
                    .cause = "its parameters are there for work on the forward's stream",
                    .hint = "set the stream around the whole forward, outside of the model"});
}

void EngineUnit::begin_forward(const std::shared_ptr<ForwardCall>& call) {
  const auto in_forward = [&] { return describe("forward"); };
  with_place(in_forward, [&] { engine.pre_forward(*this, *call); });
  engine.clock->push_call(call);
  call->runs = true;
  call->range.emplace(engine.context->torch_device, "forward", shard->fqn());
  with_place(in_forward, [&] {
    call->span.emplace(engine.context->spans, *engine.context->compute, SpanLane::kCompute,
                       call->forward_task < 0 ? "forward" : "recompute", shard->fqn());
  });
}

void EngineUnit::end_forward(Call& of, bool failed) {
  auto& call = static_cast<ForwardCall&>(of);
  call.runs = false;
  call.range.reset();
  call.span.reset();
  try {
    with_place([&] { return describe("forward"); }, [&] { engine.post_forward(*this, call); });
  } catch (const DeviceError&) {  // the device is lost, of which forward throws already
    if (!failed) throw;
  }
  if (failed) forget_written();  // one error is under way already
  throw_if_written();
}

void EngineUnit::require_complete_gradients() const {
  const auto refuse = [&](std::string_view what, std::string_view sync) {
    throw StateError({.what = fmt::format("step while gradients wait to be {}", what),
                      .where = name_of_unit(shard->fqn()),
                      .cause = fmt::format("all backwards since the last step ran under {}", sync),
                      .hint = "run the last backward of a step outside of it, or call zero_grad"});
  };
  const UnitGradients& gradients = shard->gradients();
  if (gradients.await_across()) {
    refuse("summed over groups of ranks", "GradSync(GradientSync::kInside)");
  }
  if (gradients.state() == GradientState::kKept) refuse("reduced", "GradSync(false)");
  gradients.require_unmixed();
}

void EngineUnit::follow_shard_touch(const touch_trap::ShardTouch& touch) {
  const bool of_gradient = touch.holds == touch_trap::Holds::kGradients;
  if (!of_gradient && !touch.writes) return;
  const std::string_view shards = of_gradient ? "gradients" : "main shards";
  const bool in_backward = engine.pass->in_backward();
  if (in_backward || (engine.pass->active_calls() > 0 && touch.writes)) {
    throw StateError(
        {.what = fmt::format("'{}' {} {} of {} inside a {}", touch.name,
                             touch.writes ? "writes" : "reads", shards, name_of_unit(shard->fqn()),
                             in_backward ? "backward" : "forward"),
         .where = {},
         .cause = "gradients are complete when the outermost backward has returned",
         .hint = "step, clip and call zero_grad between steps, not from a hook or a "
                 "module's forward"});
  }
  if (!of_gradient)
    return engine.require_not_gathered(fmt::format("'{}' on main shards", touch.name));
  if (touch.name == "aten::detach_") return;  // LibTorch's zero_grad, which is right at any time
  // Sums within groups are there to be changed; a step reads them.
  if (touch.writes && shard->gradients().await_across()) return;
  require_complete_gradients();
  if (!is_by_policy() || shard->parameters().guards() == ParameterSeats::Guards::kThere) return;
  throw StateError({.what = "a step with gradients that the model's zero_grad has taken away",
                    .where = name_of_unit(shard->fqn()),
                    .cause = fmt::format("'{}' uses them in the shards", touch.name),
                    .hint = "call zero_grad of LibTorch's optimizer instead of the model's"});
}

std::string EngineUnit::describe(std::string_view what) const {
  return fmt::format("{} of {}", what, name_of_unit(shard->fqn()));
}

void EngineUnit::note_written() {
  if (!written_.empty() || shard->parameters().state() != ParameterState::kUnsharded) return;
  if (shard->parameters().keeps_writes()) {
    shard->parameters().take_kept_writes();
  } else {
    written_ = shard->parameters().first_written();
  }
}

void EngineUnit::throw_if_written() {
  if (written_.empty()) return;
  const std::string fqn = std::exchange(written_, {});
  throw StateError(
      {.what = fmt::format("parameter '{}' was written inside a forward or backward", fqn),
       .where = name_of_unit(shard->fqn()),
       .cause = "a sharded parameter is whole only while its unit runs; the change would be lost, "
                "or kept by "
                "this rank alone",
       .hint =
           "change parameters between steps, through Engine::sharded_parameters() or "
           "fsdp::Gathered with fsdp::WriteBack; renormalise embeddings (max_norm) there, too"});
}

void EngineUnit::refuse_captured() const {
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (!accumulators_[i] || !autograd_hooks::is_captured(*accumulators_[i])) continue;
    throw StateError(
        {.what = fmt::format("autograd::grad with respect to the sharded parameter '{}'",
                             shard->layout().parameters()[i].fqn),
         .where = name_of_unit(shard->fqn()),
         .cause = "it would return this rank's own gradient, which no other rank has a part in",
         .hint = "call backward() and read `local.grad()` of Engine::sharded_parameters()"});
  }
}

void EngineUnit::on_gradient(int parameter, const at::Tensor& gradient) {
  const std::lock_guard lock(engine.clock->mutex);
  const std::string& fqn = shard->layout().parameters()[parameter].fqn;
  if (autograd_hooks::inputs_given()) {
    throw StateError(
        {.what = fmt::format("backward(inputs) names the sharded parameter '{}'", fqn),
         .where = name_of_unit(shard->fqn()),
         .cause = {},
         .hint = "call backward() without inputs; freeze what should get no gradient"});
  }
  if (!engine.clock->captures()) {
    throw StateError({.what = fmt::format("autograd::grad through a recomputed forward of {}",
                                          name_of_unit(shard->fqn())),
                      .where = {},
                      .cause = "recomputation runs a backward of its own, for all parameters",
                      .hint = "call backward(), or do not recompute this forward"});
  }
  // A custom Function that needs no parameter for their gradients has read none.
  if (is_by_policy() && !is_open) {
    fire_unhooked(autograd_hooks::current_task(), autograd_hooks::current_sequence());
  }
  if (!is_open) engine.clock->fire_running(*this, autograd_hooks::current_task());
  // Of empty parameters alone nothing is captured.
  const bool captures =
      shard->gradients().state() == GradientState::kCapturing || !shard->layout().has_trainable();
  // Kept in release builds: it makes every breach of the closing rule loud.
  if (!is_open || !captures) {
    throw StateError({.what = fmt::format("a gradient of '{}' arrived after {} closed", fqn,
                                          name_of_unit(shard->fqn())),
                      .where = {},
                      .cause = {},
                      .hint =
                          "return every tensor that the loss is made of from the unit's forward, "
                          "also an auxiliary loss that it keeps in a member; run the forward on "
                          "one thread, and use its parameters inside it alone"});
  }
  with_place([&] { return describe("backward"); },
             [&] { shard->gradients().capture(parameter, gradient); });
}

void EngineUnit::open(Call& /*call*/, bool captures) {
  if (!captures) refuse_captured();
  with_place([&] { return describe("backward"); },
             [&] {
               follow_compute(/*may_change=*/true);
               ShardContext& context = *engine.context;
               if (!span_) {
                 span_.emplace(context.spans, *context.compute, SpanLane::kBackward, "backward",
                               shard->fqn());
               }
               engine.open_unit(*this, captures);
             });
}

void EngineUnit::close(bool captures) {
  with_place([&] { return describe("backward"); }, [&] { engine.close_unit(*this, captures); });
  span_.reset();
  throw_if_written();
}

void EngineUnit::rest() {
  with_place([&] { return describe("backward"); }, [&] { engine.rest_unit(*this); });
}

void EngineUnit::abandon() {
  span_.reset();
  forget_written();  // the backward's own error is on its way
  try {
    shard->gradients().abandon();
    const bool is_seated = shard->parameters().state() != ParameterState::kSharded;
    if (is_seated && engine.pass->active_calls(index) == 0) engine.actions.reshard(index);
  } catch (const DeviceError&) {  // the device is lost, of which backward throws already
  }
}

}  // namespace fsdp
