#include "engine/touched_units.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/autograd_hooks.h"
#include "engine/engine_parts.h"
#include "engine/module_states.h"
#include "engine/type_mismatch.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

EngineUnit& unit_of(touch_trap::Touched* touched) {
  return *static_cast<TouchedUnit*>(touched)->unit;
}

const EngineUnit& unit_of(const Call& call) { return static_cast<const EngineUnit&>(*call.of); }

bool touches(const touch_trap::Touch& touch, const Call& call) {
  return std::ranges::any_of(touch.units, [&](auto* each) { return &unit_of(each) == call.of; });
}

// Returns true if the unit is unsharded inside an fsdp::Gathered. Any operator may then read and
// write the parameters of the unit.
bool is_gathered(const EngineUnit& unit) {
  return unit.owner.pass.gathered() > 0 &&
         unit.shard->parameters().state() == ParameterState::kUnsharded;
}

[[noreturn]] void refuse_outside(const touch_trap::Touch& touch, const EngineUnit& unit) {
  throw StateError(
      {.what = fmt::format("'{}' {} parameters of {} outside a forward", touch.name,
                           touch.written != nullptr ? "writes" : "reads",
                           name_of_unit(unit.shard->fqn())),
       .cause = "the parameters are sharded: this rank has a part of each",
       .hint = "run the model inside Engine::forward; read, save or load whole parameters inside "
               "fsdp::Gathered; choose types with fsdp::Options instead of to()"});
}

[[noreturn]] void refuse_two_meshes(const touch_trap::Touch& touch, const EngineUnit& one,
                                    const EngineUnit& other) {
  throw StateError({.what = fmt::format(
                        "'{}' is given parameters of engines on two meshes: {} and {}", touch.name,
                        name_of_unit(one.shard->fqn()), name_of_unit(other.shard->fqn())),
                    .cause = "collectives of two meshes have no common order",
                    .hint = "make both engines with one mesh; to copy values between the "
                            "models, gather both with fsdp::Gathered first"});
}

[[noreturn]] void refuse_written(const touch_trap::Touch& touch, const EngineUnit& unit,
                                 bool in_backward) {
  throw StateError({.what = fmt::format("'{}' writes a parameter inside a {}", touch.name,
                                        in_backward ? "backward" : "forward"),
                    .where = name_of_unit(unit.shard->fqn()),
                    .cause = "the change would be lost, or only this rank would keep it",
                    .hint =
                        "change parameters between steps, through Engine::sharded_parameters() or "
                        "fsdp::Gathered with fsdp::WriteBack"});
}

[[noreturn]] void refuse_in_backward(const touch_trap::Touch& touch, const EngineUnit& unit) {
  throw StateError(
      {.what = fmt::format("'{}' reads parameters of {} before backward reaches the unit",
                           touch.name, name_of_unit(unit.shard->fqn())),
       .cause = "a hook reads them, or unshard_in_backward is false for a unit that reads its "
                "weights in backward",
       .hint = "set unshard_in_backward to true, or make the module that reads them a fsdp::Unit"});
}

thread_local int running_again_in = -1;  // graph task of the innermost ForwardAgain; -1: none

// Returns true if an operator in graph task `task` belongs to a forward that runs again. Returns
// false if the operator belongs to a backward node. Backward nodes run with grad mode off.
bool is_forward_again(const BackwardScheduler& scheduler, int task) {
  if (c10::GradMode::is_enabled() || running_again_in == task) return true;
  // Grad mode is also off in a custom Function inside another library's checkpoint. If the
  // innermost call began in this graph task, it began inside such a checkpoint, so the operator
  // belongs to a forward.
  return scheduler.in_call() && scheduler.innermost_call()->forward_task == task;
}

// Checks an operator that the caller runs on a unit's main shard or main gradient. Throws
// StateError in the states in which fsdp::Optimizer's step would throw.
void follow_shard(const touch_trap::ShardTouch& touch) {
  EngineUnit& unit = unit_of(touch.unit);
  const EnginePass& pass = unit.owner.pass;
  const std::lock_guard lock(unit.owner.scheduler->mutex);
  const bool of_gradient = touch.holds == touch_trap::Holds::kGradients;
  // An operator that only reads a main shard is allowed at any time.
  if (!of_gradient && !touch.writes) return;
  const std::string_view shards = of_gradient ? "gradients" : "main shards";
  // In a forward the caller may read gradients, because the forward writes none. In a backward
  // every other access throws, because the backward may write gradients at any time.
  const bool in_backward = pass.schedule().in_backward();
  if (in_backward || (pass.schedule().active_calls() > 0 && touch.writes)) {
    throw StateError(
        {.what = fmt::format("'{}' {} {} of {} inside a {}", touch.name,
                             touch.writes ? "writes" : "reads", shards,
                             name_of_unit(unit.shard->fqn()), in_backward ? "backward" : "forward"),
         .cause = "gradients are complete only after the outermost backward",
         .hint = "step, clip and call zero_grad outside of forward and backward, not from a hook"});
  }
  if (!of_gradient)
    return pass.require_not_gathered(fmt::format("'{}' on main shards", touch.name));
  if (touch.name == "aten::detach_") return;  // LibTorch's zero_grad, which is always allowed
  // Before the gradients are summed over groups, the caller may write the sums within groups, for
  // example to scale them. An operator that only reads them belongs to a step, and a step is not
  // allowed before the sum over groups.
  if (touch.writes && unit.shard->gradients().await_across()) return;
  unit.require_complete_gradients();
  if (!unit.is_by_policy() ||
      unit.shard->parameters().guards() == ParameterBindings::Guards::kThere)
    return;
  // The model's zero_grad has reset `.grad` of the unit's parameters, but the unit's shards still
  // have gradients. A LibTorch optimizer would use the gradients of the shards in its step.
  throw StateError(
      {.what = "cannot step: the model's zero_grad removed the gradients from the parameters",
       .where = name_of_unit(unit.shard->fqn()),
       .cause = fmt::format("'{}' would use the gradients that the engine still keeps in its "
                            "shards",
                            touch.name),
       .hint = "call zero_grad of LibTorch's optimizer instead of the model's"});
}

// The listener that the trap (touch_trap.h) calls for each operator on a watched tensor. From the
// operators on parameters it derives the calls of units chosen by policy.
class Touches final : public touch_trap::Listener {
 public:
  void shard(const touch_trap::ShardTouch& touch) override { follow_shard(touch); }

  bool before(const touch_trap::Touch& touch) override {
    BackwardScheduler& scheduler = *unit_of(touch.units[0]).owner.scheduler;
    const std::lock_guard lock(scheduler.mutex);
    if (std::ranges::all_of(touch.units, [](auto* each) { return is_gathered(unit_of(each)); })) {
      return false;
    }
    for (auto* each : touch.units) {
      const EngineUnit& unit = unit_of(each);
      if (unit.owner.scheduler.get() != &scheduler) {
        refuse_two_meshes(touch, unit_of(touch.units[0]), unit);
      }
    }
    const int task = autograd_hooks::current_task();
    if (task >= 0 && !is_forward_again(scheduler, task)) {
      // The operator runs in a node of backward. Its results are gradients, not outputs of a call,
      // so no result is hooked.
      for (auto* each : touch.units) read_in_backward(touch, unit_of(each), task);
      return false;
    }
    if (task < 0) {
      for (auto* each : touch.units) {
        if (unit_of(each).owner.pass.schedule().active_calls() == 0)
          refuse_outside(touch, unit_of(each));
      }
      scheduler.check_thread();
    }
    if (touch.written != nullptr) refuse_written(touch, unit_of(touch.written), task >= 0);
    read_in_forward(touch, scheduler, task);
    return true;
  }

  void after(const touch_trap::Touch& touch, std::span<const at::Tensor> results) override {
    BackwardScheduler& scheduler = *unit_of(touch.units[0]).owner.scheduler;
    const int task = autograd_hooks::current_task();
    const bool has_graph = autograd_hooks::makes_graph();
    for (auto* each : touch.units) {
      EngineUnit& unit = unit_of(each);
      // The mutex is held while the call is looked up, but not while the results are hooked: see
      // [Note: grad_fn before the mutex].
      const std::shared_ptr<Call> call = [&] {
        const std::lock_guard lock(scheduler.mutex);
        return scheduler.running_call(unit, task);
      }();
      if (!call) continue;
      bool hooked = false;
      if (has_graph) {  // [Note: grad_fn before the mutex]
        for (const at::Tensor& result : results) {
          hooked = autograd_hooks::hook_output(result, call) || hooked;
        }
      }
      const std::lock_guard lock(scheduler.mutex);
      if (call->is_open_ended && hooked) call->in_graph = true;
      // An operator inside a custom Function makes no node that could be hooked, even if the
      // forward has a graph. The unit keeps a list of such calls, from which backward fires them.
      if (!hooked && unit.owner.pass.forward_has_graph()) unit.keep_unhooked(call);
    }
    const std::lock_guard lock(scheduler.mutex);
    // The nodes made between this touch and the next touch belong to the call of the next touch.
    scheduler.note_boundary(autograd_hooks::next_sequence());
  }

  void failed(const touch_trap::Touch& touch, c10::Error& error) override {
    if (!error.context().empty()) return;  // an inner unit has already explained the error
    const EngineUnit& unit = unit_of(touch.units[0]);
    refuse_buffers_of_other_type(error, unit);
    std::string text =
        fmt::format("in '{}' on parameters of {}", touch.name, name_of_unit(unit.shard->fqn()));
    if (const std::optional<DType> computes = unit.place.precision.param) {
      text += fmt::format(
          ", which computes in {}; hint: pass inputs as arguments of Engine::forward, which casts "
          "them",
          name_of(*computes));
    }
    error.add_context(std::move(text));
  }

 private:
  // Gathers the unit for a node of backward that reads its parameters. Usually a hook of the call's
  // outputs has already gathered the unit. If the call has no hooked outputs, this function fires
  // the call, which gathers the unit.
  static void read_in_backward(const touch_trap::Touch& touch, EngineUnit& unit, int task) {
    if (touch.written != nullptr) refuse_written(touch, unit, /*in_backward=*/true);
    if (unit.shard->parameters().state() == ParameterState::kUnsharded) return;
    if (unit.fire_unhooked(*unit.owner.scheduler, task, autograd_hooks::current_sequence()) &&
        unit.shard->parameters().state() == ParameterState::kUnsharded) {
      return;
    }
    refuse_in_backward(touch, unit);
  }

  static void read_in_forward(const touch_trap::Touch& touch, BackwardScheduler& scheduler,
                              int task) {
    const EngineUnit& first = unit_of(touch.units[0]);
    first.require_no_autocast(first.owner.context->streams.torch_device);
    for (auto* each : touch.units) ModuleStates::begin(unit_of(each));
    const Call* innermost = scheduler.in_call() ? scheduler.innermost_call().get() : nullptr;
    if (innermost != nullptr && touch.units.size() == 1 && innermost->forward_task == task &&
        innermost->of == &unit_of(touch.units[0])) {
      return;  // the usual case: one more operator of the innermost call
    }
    c10::SmallVector<EngineUnit*, 4> begun;
    for (auto* each : touch.units) {
      if (!scheduler.running_call(unit_of(each), task)) begun.push_back(&unit_of(each));
    }
    if (task >= 0) {
      // This is the same as in UnitCall::begin: finished units are closed, and idle units are
      // resharded, before the touched units are gathered.
      scheduler.enter(task);
      scheduler.tick(task, autograd_hooks::current_sequence());
      for (EngineUnit* unit : begun) scheduler.rest_idle(unit);
    }
    // Calls of units inside or around a touched unit continue. All other open-ended calls end here.
    scheduler.end_open_ended(/*failed=*/false, [&](const Call& call) {
      const EngineUnit& running = unit_of(call);
      return call.forward_task == task && std::ranges::any_of(touch.units, [&](auto* each) {
               const EngineUnit& unit = unit_of(each);
               return unit.is_inside(running) || running.is_inside(unit);
             });
    });
    for (EngineUnit* unit : begun) {
      // The parent is the innermost call whose unit is neither touched nor inside this unit. The
      // second condition is needed because inner units may have calls before the unit around them
      // has one.
      const auto around = scheduler.innermost_call_but(
          [&](const Call& call) { return touches(touch, call) || unit_of(call).is_inside(*unit); });
      begin_call(*unit, around, scheduler, task);
    }
  }

  static void begin_call(EngineUnit& unit, const std::shared_ptr<Call>& parent,
                         BackwardScheduler& scheduler, int task) {
    with_place([&] { return unit.describe("forward"); },
               [&] { unit.owner.pass.follow_compute(unit, /*may_change=*/task >= 0); });
    const auto call = std::make_shared<Call>(unit.weak_from_this(), scheduler);
    call->is_open_ended = true;
    call->forward_task = task;
    call->parent = parent;
    // The nodes made since the last touch, for example the node of a custom Function, belong to
    // this call. If another thread recorded the position of the last touch, this position is not
    // used, because each thread has its own sequence numbers.
    call->begin = scheduler.boundary().value_or(autograd_hooks::next_sequence());
    unit.owner.pass.begin_call(unit, call);
  }
};

}  // namespace

namespace touched_units {

void CallsAround::begin() {
  const auto unit = ModuleStates::running();
  if (!unit) return;
  const std::lock_guard lock(unit->owner.scheduler->mutex);
  for (const auto& call : unit->owner.scheduler->calls_under_way()) {
    // Only open-ended calls must be fired before the node of the recomputed function runs. The call
    // of an fsdp::Unit needs no such step: backward has already reached the call's hooked outputs.
    if (call->is_open_ended) calls_.push_back(call);
  }
  if (!calls_.empty()) scheduler_ = unit->owner.scheduler;
}

// Drops calls that the function's own touches have ended. These calls are not around the function.
void CallsAround::end() {
  if (!scheduler_) return;
  const std::lock_guard lock(scheduler_->mutex);
  std::erase_if(calls_, [&](const std::weak_ptr<Call>& call) {
    const auto is_it = [&](const auto& each) { return each == call.lock(); };
    return std::ranges::none_of(scheduler_->calls_under_way(), is_it);
  });
}

void CallsAround::fire() const {
  if (calls_.empty()) return;
  const std::lock_guard lock(scheduler_->mutex);
  scheduler_->pre_backward_around(calls_, autograd_hooks::current_task(),
                                  autograd_hooks::current_sequence());
}

void hook_recomputed(const std::vector<at::Tensor>& outputs, const ModuleStates& ran) {
  const auto running = ModuleStates::running();
  if (!running) return;
  BackwardScheduler& scheduler = *running->owner.scheduler;
  std::vector<std::shared_ptr<Call>> calls;
  {
    const std::lock_guard lock(scheduler.mutex);
    const int task = autograd_hooks::current_task();
    std::ranges::copy_if(scheduler.calls_under_way(), std::back_inserter(calls),
                         [&](const auto& call) {
                           const EngineUnit& unit = unit_of(*call);
                           return call->is_open_ended && call->forward_task == task &&
                                  unit.has_several_layers() && ran.has(unit);
                         });
  }
  for (const std::shared_ptr<Call>& call : calls) {
    for (const at::Tensor& output : outputs) {
      if (!output.grad_fn()) continue;  // [Note: grad_fn before the mutex]
      {
        // The call begins at the function's node at the latest. Otherwise the node would not belong
        // to the call if the function touched another unit before the call began.
        const std::lock_guard lock(scheduler.mutex);
        call->begin = std::min(call->begin, autograd_hooks::sequence_of(*output.grad_fn()));
        call->in_graph = true;
      }
      autograd_hooks::hook_output(output, call);
    }
  }
}

ForwardAgain::ForwardAgain()
    : around_(std::exchange(running_again_in, autograd_hooks::current_task())) {}
ForwardAgain::~ForwardAgain() { running_again_in = around_; }

void arm() {
  static auto* const touches = new Touches;  // never destroyed; static tensors may use it
  touch_trap::arm(*touches);
}

}  // namespace touched_units

}  // namespace fsdp
