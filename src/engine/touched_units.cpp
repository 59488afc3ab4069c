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

// Values that fsdp::Gathered has made whole are anybody's to read and write.
bool is_gathered(const EngineUnit& unit) {
  return unit.owner.pass.gathered() > 0 &&
         unit.shard->parameters().state() == ParameterState::kUnsharded;
}

[[noreturn]] void refuse_outside(const touch_trap::Touch& touch, const EngineUnit& unit) {
  throw StateError({.what = fmt::format("'{}' {} parameters of {} outside a forward", touch.name,
                                        touch.written != nullptr ? "writes" : "reads",
                                        name_of_unit(unit.shard->fqn())),
                    .cause = "they are sharded: this rank has a part of each",
                    .hint = "run the model inside Engine::forward; look at, save or load whole "
                            "values inside fsdp::Gathered, and choose types through "
                            "fsdp::Options instead of to()"});
}

[[noreturn]] void refuse_two_meshes(const touch_trap::Touch& touch, const EngineUnit& one,
                                    const EngineUnit& other) {
  throw StateError({.what = fmt::format(
                        "'{}' is given parameters of engines on two meshes: {} and {}", touch.name,
                        name_of_unit(one.shard->fqn()), name_of_unit(other.shard->fqn())),
                    .cause = "collectives of two meshes have no common order",
                    .hint = "make both engines with one mesh; copy between the models inside "
                            "fsdp::Gathered of both"});
}

[[noreturn]] void refuse_written(const touch_trap::Touch& touch, const EngineUnit& unit,
                                 bool in_backward) {
  throw StateError({.what = fmt::format("'{}' writes a parameter inside a {}", touch.name,
                                        in_backward ? "backward" : "forward"),
                    .where = name_of_unit(unit.shard->fqn()),
                    .cause = "the change would be lost, or kept by this rank only",
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
       .hint = "make the module that reads them a fsdp::Unit"});
}

thread_local int running_again_in = -1;  // graph task

// Of an operator in graph task `task`: a forward that is run again, not the node of one that has
// run.
bool is_forward_again(const BackwardScheduler& clock, int task) {
  if (c10::GradMode::is_enabled() || running_again_in == task) return true;
  // A checkpoint of somebody else's, and a custom Function in it.
  return clock.in_call() && clock.innermost_call()->forward_task == task;
}

// An operator of the caller's on a unit's main shard or main gradient. Errors: StateError where
// fsdp::Optimizer's step would refuse it.
void follow_shard(const touch_trap::ShardTouch& touch) {
  EngineUnit& unit = unit_of(touch.unit);
  const EnginePass& pass = unit.owner.pass;
  const std::lock_guard lock(unit.owner.clock->mutex);
  const bool of_gradient = touch.holds == touch_trap::Holds::kGradients;
  if (!of_gradient && !touch.writes) return;
  const std::string_view shards = of_gradient ? "gradients" : "main shards";
  const bool in_backward = pass.schedule().in_backward();
  if (in_backward || (pass.schedule().active_calls() > 0 && touch.writes)) {
    throw StateError(
        {.what = fmt::format("'{}' {} {} of {} inside a {}", touch.name,
                             touch.writes ? "writes" : "reads", shards,
                             name_of_unit(unit.shard->fqn()), in_backward ? "backward" : "forward"),
         .cause = "gradients are complete when the outermost backward has returned",
         .hint = "step, clip and call zero_grad between steps, not from a hook or a "
                 "module's forward"});
  }
  if (!of_gradient)
    return pass.require_not_gathered(fmt::format("'{}' on main shards", touch.name));
  if (touch.name == "aten::detach_") return;  // LibTorch's zero_grad, which is right at any time
  // Sums within groups are there to be changed; a step reads them.
  if (touch.writes && unit.shard->gradients().await_across()) return;
  unit.require_complete_gradients();
  if (!unit.is_by_policy() ||
      unit.shard->parameters().guards() == ParameterBindings::Guards::kThere)
    return;
  throw StateError({.what = "cannot step: the model's zero_grad cleared the gradients",
                    .where = name_of_unit(unit.shard->fqn()),
                    .cause = fmt::format("'{}' reads them in the shards", touch.name),
                    .hint = "call zero_grad of LibTorch's optimizer instead of the model's"});
}

class Touches final : public touch_trap::Listener {
 public:
  void shard(const touch_trap::ShardTouch& touch) override { follow_shard(touch); }

  bool before(const touch_trap::Touch& touch) override {
    BackwardScheduler& clock = *unit_of(touch.units[0]).owner.clock;
    const std::lock_guard lock(clock.mutex);
    if (std::ranges::all_of(touch.units, [](auto* each) { return is_gathered(unit_of(each)); })) {
      return false;
    }
    for (auto* each : touch.units) {
      const EngineUnit& unit = unit_of(each);
      if (unit.owner.clock.get() != &clock) {
        refuse_two_meshes(touch, unit_of(touch.units[0]), unit);
      }
    }
    const int task = autograd_hooks::current_task();
    if (task >= 0 && !is_forward_again(clock, task)) {
      for (auto* each : touch.units) read_in_backward(touch, unit_of(each), task);
      return false;
    }
    if (task < 0) {
      for (auto* each : touch.units) {
        if (unit_of(each).owner.pass.schedule().active_calls() == 0)
          refuse_outside(touch, unit_of(each));
      }
      clock.check_thread();
    }
    if (touch.written != nullptr) refuse_written(touch, unit_of(touch.written), task >= 0);
    read_in_forward(touch, clock, task);
    return true;
  }

  void after(const touch_trap::Touch& touch, std::span<const at::Tensor> results) override {
    BackwardScheduler& clock = *unit_of(touch.units[0]).owner.clock;
    const int task = autograd_hooks::current_task();
    const bool has_graph = autograd_hooks::makes_graph();
    for (auto* each : touch.units) {
      EngineUnit& unit = unit_of(each);
      const std::shared_ptr<Call> call = [&] {
        const std::lock_guard lock(clock.mutex);
        return clock.running_call(unit, task);
      }();
      if (!call) continue;
      bool hooked = false;
      if (has_graph) {  // [Note: grad_fn before the clock]
        for (const at::Tensor& result : results) {
          hooked = autograd_hooks::hook_output(result, call) || hooked;
        }
      }
      const std::lock_guard lock(clock.mutex);
      if (call->is_open_ended && hooked) call->in_graph = true;
      if (!hooked && unit.owner.pass.forward_has_graph()) unit.keep_unhooked(call);
    }
    const std::lock_guard lock(clock.mutex);
    clock.note_boundary(autograd_hooks::next_sequence());
  }

  void failed(const touch_trap::Touch& touch, c10::Error& error) override {
    if (!error.context().empty()) return;  // the innermost has spoken
    const EngineUnit& unit = unit_of(touch.units[0]);
    refuse_buffers_of_other_type(error, unit);
    std::string text =
        fmt::format("in '{}' on parameters of {}", touch.name, name_of_unit(unit.shard->fqn()));
    if (const std::optional<DType> computes = unit.place.precision.param) {
      text += fmt::format(
          ", which computes in {}; hint: give inputs to Engine::forward as arguments, which it "
          "casts",
          name_of(*computes));
    }
    error.add_context(std::move(text));
  }

 private:
  // The node of an operator that was given parameters reads them again.
  static void read_in_backward(const touch_trap::Touch& touch, EngineUnit& unit, int task) {
    if (touch.written != nullptr) refuse_written(touch, unit, /*in_backward=*/true);
    if (unit.shard->parameters().state() == ParameterState::kUnsharded) return;
    if (unit.fire_unhooked(*unit.owner.clock, task, autograd_hooks::current_sequence()) &&
        unit.shard->parameters().state() == ParameterState::kUnsharded) {
      return;
    }
    refuse_in_backward(touch, unit);
  }

  static void read_in_forward(const touch_trap::Touch& touch, BackwardScheduler& clock, int task) {
    const EngineUnit& first = unit_of(touch.units[0]);
    first.require_no_autocast(first.owner.context->streams.torch_device);
    for (auto* each : touch.units) ModuleStates::begin(unit_of(each));
    const Call* innermost = clock.in_call() ? clock.innermost_call().get() : nullptr;
    if (innermost != nullptr && touch.units.size() == 1 && innermost->forward_task == task &&
        innermost->of == &unit_of(touch.units[0])) {
      return;  // as most touches
    }
    c10::SmallVector<EngineUnit*, 4> begun;
    for (auto* each : touch.units) {
      if (!clock.running_call(unit_of(each), task)) begun.push_back(&unit_of(each));
    }
    if (task >= 0) {
      clock.enter(task);
      clock.tick(task, autograd_hooks::current_sequence());
      for (EngineUnit* unit : begun) clock.rest_idle(unit);
    }
    clock.end_open_ended(/*failed=*/false, [&](const Call& call) {
      const EngineUnit& running = unit_of(call);
      return call.forward_task == task && std::ranges::any_of(touch.units, [&](auto* each) {
               const EngineUnit& unit = unit_of(each);
               return unit.is_inside(running) || running.is_inside(unit);
             });
    });
    for (EngineUnit* unit : begun) {
      const auto around = clock.innermost_call_but(
          [&](const Call& call) { return touches(touch, call) || unit_of(call).is_inside(*unit); });
      begin_call(*unit, around, clock, task);
    }
  }

  static void begin_call(EngineUnit& unit, const std::shared_ptr<Call>& parent,
                         BackwardScheduler& clock, int task) {
    with_place([&] { return unit.describe("forward"); },
               [&] { unit.owner.pass.follow_compute(unit, /*may_change=*/task >= 0); });
    const auto call = std::make_shared<Call>(unit.weak_from_this(), clock);
    call->is_open_ended = true;
    call->forward_task = task;
    call->parent = parent;
    call->begin = clock.boundary().value_or(autograd_hooks::next_sequence());
    unit.owner.pass.begin_call(unit, call);
  }
};

}  // namespace

namespace touched_units {

void CallsAround::begin() {
  const auto unit = ModuleStates::running();
  if (!unit) return;
  const std::lock_guard lock(unit->owner.clock->mutex);
  for (const auto& call : unit->owner.clock->calls_under_way()) {
    if (call->is_open_ended) calls_.push_back(call);
  }
  if (!calls_.empty()) clock_ = unit->owner.clock;
}

// The function's own touches have ended those that it has nothing to do with.
void CallsAround::end() {
  if (!clock_) return;
  const std::lock_guard lock(clock_->mutex);
  std::erase_if(calls_, [&](const std::weak_ptr<Call>& call) {
    const auto is_it = [&](const auto& each) { return each == call.lock(); };
    return std::ranges::none_of(clock_->calls_under_way(), is_it);
  });
}

void CallsAround::fire() const {
  if (calls_.empty()) return;
  const std::lock_guard lock(clock_->mutex);
  clock_->pre_backward_around(calls_, autograd_hooks::current_task(),
                              autograd_hooks::current_sequence());
}

void hook_recomputed(const std::vector<at::Tensor>& outputs, const ModuleStates& ran) {
  const auto running = ModuleStates::running();
  if (!running) return;
  BackwardScheduler& clock = *running->owner.clock;
  std::vector<std::shared_ptr<Call>> calls;
  {
    const std::lock_guard lock(clock.mutex);
    const int task = autograd_hooks::current_task();
    std::ranges::copy_if(clock.calls_under_way(), std::back_inserter(calls), [&](const auto& call) {
      const EngineUnit& unit = unit_of(*call);
      return call->is_open_ended && call->forward_task == task && unit.has_several_layers() &&
             ran.has(unit);
    });
  }
  for (const std::shared_ptr<Call>& call : calls) {
    for (const at::Tensor& output : outputs) {
      if (!output.grad_fn()) continue;  // [Note: grad_fn before the clock]
      {
        // The function's node is the call's, also where the function has touched another unit
        // before the call began in it.
        const std::lock_guard lock(clock.mutex);
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
  static auto* const touches = new Touches;  // tensors that tell it may outlive static objects
  touch_trap::arm(*touches);
}

}  // namespace touched_units

}  // namespace fsdp
