// Implements UnitCall: the engine's work around a unit's forward.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/autograd_hooks.h"
#include "engine/engine_parts.h"
#include "engine/module_states.h"
#include "engine/type_mismatch.h"
#include "fsdp/error.h"
#include "fsdp/unit.h"
#include "runtime/device_error_place.h"

namespace fsdp {

struct UnitCall::State {
  std::shared_ptr<Call> call;
  std::vector<at::Tensor> inputs;    // inputs of forward, after the cast
  std::vector<at::Tensor*> outputs;  // tensors in the caller's result, replaced if they are cast
  torch_compat::NodePtr producer;
  bool outermost = false;
  std::optional<ModuleStates::Running> running;
};

UnitCall::UnitCall(UnitBase& unit) {
  if (!unit.attached()) return;
  unit_ = unit.engine_unit_.lock();
  if (unit_ == nullptr) {
    throw StateError(
        {.what = "a unit was called without an engine",
         .cause = "the engine was destroyed, or the BuildScope was not passed to an engine yet",
         .hint = "construct fsdp::Engine before the first forward and keep it alive"});
  }
  state_ = std::make_unique<State>();
}

UnitCall::UnitCall(const Engine& engine) {
  EngineParts& state = *engine.state_;
  if (!state.model.units[0]->is_by_policy()) return;  // an fsdp::Unit makes its own UnitCall
  unit_ = state.model.units[0];
  state_ = std::make_unique<State>();
}

void UnitCall::input(at::Tensor& tensor) {
  const std::optional<DType> dtype = unit_->place.precision.input();
  if (dtype && tensor.defined() && tensor.is_floating_point()) {
    tensor = tensor.to(scalar_type_of(*dtype));
  }
  state_->inputs.push_back(tensor);
}

void UnitCall::input(const at::Tensor& tensor) { state_->inputs.push_back(tensor); }

void UnitCall::begin() {
  EngineParts& engine = unit_->owner;
  ModuleStates::begin(*unit_);
  state_->running.emplace(unit_);
  BackwardScheduler& scheduler = *engine.scheduler;
  // [Note: grad_fn before the mutex] LibTorch locks a view while it makes the view's grad_fn again.
  // Making the grad_fn may free an older node with an OutputHook, whose destructor locks the
  // backward scheduler's mutex. So no code reads a grad_fn while it holds this mutex, because two
  // threads could then deadlock.
  if (autograd_hooks::makes_graph())
    state_->producer = autograd_hooks::newest_producer(state_->inputs);
  const std::lock_guard lock(scheduler.mutex);
  unit_->require_no_autocast(engine.context->streams.torch_device);
  const int task = autograd_hooks::current_task();
  // A forward inside a backward is a recomputation. Finished units are closed first and idle units
  // are resharded, so that their memory is free for this forward.
  if (task >= 0) {
    scheduler.enter(task);
    scheduler.tick(task, autograd_hooks::current_sequence());
    scheduler.rest_idle(unit_.get());
  } else {
    scheduler.check_thread();
  }
  // The forward of an fsdp::Unit ends the open-ended calls of all units that are not around it.
  scheduler.end_open_ended(/*failed=*/false, [&](const Call& call) {
    return call.forward_task == task && unit_->is_inside(*call.unit.lock());
  });
  // True if this is the outermost call of this engine. A forward of another engine may contain this
  // call.
  state_->outermost = engine.pass.schedule().active_calls() == 0;
  with_place([&] { return unit_->describe("forward"); },
             [&] {
               if (task < 0 && state_->outermost) {
                 engine.pass.begin_forward();
               } else {
                 engine.pass.follow_compute(*unit_, /*may_change=*/task >= 0);
               }
             });
  state_->call = std::make_shared<Call>(unit_, scheduler);
  Call& call = *state_->call;
  call.forward_task = task;
  if (scheduler.in_call()) call.parent = scheduler.innermost_call();
  engine.pass.begin_call(*unit_, state_->call);
  // The sequence number is read after the inputs were made and cast. The nodes that this thread
  // makes from here on belong to the call.
  call.begin = autograd_hooks::next_sequence();
  scheduler.note_boundary(call.begin);
  // Sequence numbers are counted per thread. If the node that produced an input has a higher
  // number, another thread made this node. The number then does not show the order of nodes, which
  // [Note: closing] requires, so begin() throws.
  if (state_->producer && autograd_hooks::sequence_of(*state_->producer) >= call.begin) {
    throw StateError(
        {.what = "an input that requires grad was computed on a thread other than the forward's",
         .where = name_of_unit(unit_->shard->fqn()),
         .hint = "run the whole forward on one thread"});
  }
}

void UnitCall::output(at::Tensor& tensor) { state_->outputs.push_back(&tensor); }

void UnitCall::written(at::Tensor& tensor) {
  if (!is_input(tensor)) output(tensor);
}

bool UnitCall::is_input(const at::Tensor& tensor) const {
  return std::any_of(state_->inputs.begin(), state_->inputs.end(),
                     [&](const at::Tensor& input) { return input.is_same(tensor); });
}

void UnitCall::end() {
  EngineParts& engine = unit_->owner;
  const std::shared_ptr<Call> call = state_->call;
  // Outputs are cast before they are hooked, because backward reaches the node of the cast first.
  if (const std::optional<DType> dtype = unit_->place.precision.output) {
    for (at::Tensor* output : state_->outputs) {
      if (!output->defined() || !output->is_floating_point()) continue;
      *output = output->to(scalar_type_of(*dtype));
    }
  }
  // The module's forward has returned. The operators that run from here on belong to the engine,
  // not to the unit.
  state_->running.reset();
  call->spans.reset();
  bool in_graph = false;
  if (autograd_hooks::makes_graph()) {
    for (at::Tensor* output : state_->outputs) {
      bool hooked = autograd_hooks::hook_output(*output, call);
      // The unit returned an input, perhaps only on this rank (a dropped layer). On the other ranks
      // backward fires the call if it reaches this output. A node that is added here lets backward
      // fire the call on this rank, too.
      if (!hooked && output->defined() && output->requires_grad()) {
        *output = autograd_hooks::pass_through(*output);
        hooked = autograd_hooks::hook_output(*output, call);
      }
      in_graph = in_graph || hooked;
    }
    // If forward changed an input in place, the input is an output too, because its holder may use
    // it.
    for (const at::Tensor& input : state_->inputs) {
      in_graph = autograd_hooks::hook_output(input, call) || in_graph;
    }
    if (in_graph && state_->producer) autograd_hooks::hook_producer(*state_->producer, call);
  }
  std::vector<at::Tensor> leaves;
  // Leaves are collected here, because grad_fn must not be read under the lock below.
  if (in_graph && state_->outermost && call->forward_task < 0 &&
      engine.pass.looks_for_unregistered()) {
    std::vector<at::Tensor> outputs;
    for (const at::Tensor* output : state_->outputs) outputs.push_back(*output);
    leaves = autograd_hooks::leaves_of(outputs, call->begin);
  }
  const std::lock_guard lock(engine.scheduler->mutex);  // [Note: grad_fn before the mutex]
  // Open-ended calls of inner units end before this forward, because calls end in reverse order.
  engine.scheduler->end_open_ended();
  engine.scheduler->note_boundary(autograd_hooks::next_sequence());
  call->runs = false;
  call->in_graph = in_graph;
  engine.scheduler->pop_call();
  if (!leaves.empty()) engine.pass.look_for_unregistered(state_->inputs, leaves);
  with_place([&] { return unit_->describe("forward"); },
             [&] {
               engine.pass.end_call(*unit_, *call);
               if (call->forward_task < 0 && state_->outermost) engine.pass.end_forward(in_graph);
             });
  // Throws if the forward wrote a parameter. This check is last, because the unit's state is
  // consistent only after the unit was resharded or kept unsharded.
  unit_->throw_if_written();
}

void UnitCall::explain(c10::Error& error) const {
  if (!error.context().empty()) return;  // an inner unit has already explained the error
  refuse_buffers_of_other_type(error, *unit_);
  error.add_context(fmt::format("in the forward of {}", name_of_unit(unit_->shard->fqn())));
}

UnitCall::~UnitCall() {
  // There is no call if no engine owns the unit, if begin() was not called, or if the call ended
  // normally.
  if (!state_ || !state_->call || !state_->call->runs) return;
  // An exception left the module's forward. This call, and the calls inside it, end without a
  // graph.
  EngineParts& engine = unit_->owner;
  const std::lock_guard lock(engine.scheduler->mutex);
  engine.scheduler->end_open_ended(/*failed=*/true);
  engine.scheduler->pop_call();
  engine.pass.end_forward(unit_->index, *state_->call, /*failed=*/true);
  if (state_->outermost) engine.pass.wait_after_throw();
}

}  // namespace fsdp
