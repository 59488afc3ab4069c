// EnginePass: acts at each boundary of an engine's forward and backward. The backward scheduler
// (backward_scheduler.h) decides when backward has finished a unit. The schedule (plan/pass.h)
// decides which units are gathered, resharded and reduced at a boundary. ShardUnit (shard_unit.h)
// manages the memory of a unit. docs/streams.md explains the waits between streams.
#pragma once

#include <fsdp/engine.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/planned_memory.h"
#include "engine/sharded_model.h"
#include "engine/step_spans.h"
#include "engine/unit_updates.h"
#include "engine/unregistered_parameters.h"
#include "plan/backward_scheduler.h"
#include "plan/pass.h"
#include "plan/unit_actions.h"
#include "shard/shard_context.h"

namespace fsdp {

// Connects autograd, through the backward scheduler, with the schedule and the units. Not
// thread-safe: the backward scheduler's mutex must be held.
class EnginePass final : public ScheduledEngine, public UnitActions {
 public:
  // The parts that an EnginePass uses. All parts outlive the EnginePass.
  struct Parts {
    ShardedModel& model;
    ShardContext& context;
    BackwardScheduler& scheduler;
    PlannedMemory& memory;
    StepSpans& steps;
    UnitUpdates& updates;
  };
  explicit EnginePass(const Parts& parts) : parts_(parts) {}

  const Parts& parts() const { return parts_; }

  EngineUnit& unit_at(int unit) { return *parts_.model.units[unit]; }
  const EngineUnit& unit_at(int unit) const { return *parts_.model.units[unit]; }

  // Makes the schedule. Called once, after the model has its units.
  void make_schedule(std::vector<UnitRules> rules, PassRecord hint);
  bool has_schedule() const { return schedule_ != nullptr; }
  Pass& schedule() { return *schedule_; }
  const Pass& schedule() const { return *schedule_; }

  // ---- forward: callers hold the backward scheduler's mutex ----

  // Begin and end the outermost call of the engine outside backward. After an exception,
  // end_forward is not called.
  void begin_forward();
  void end_forward(bool in_graph);
  // Begins a call: gathers the unit's parameters and makes `call` the innermost running call.
  void begin_call(EngineUnit& unit, const std::shared_ptr<Call>& call);
  // Ends the call after its forward has returned or thrown.
  void end_call(EngineUnit& unit, const Call& call);
  // Makes LibTorch's current stream the compute stream if `may_change` is true. Called before work
  // is issued on compute.
  // Errors: StateError if the current stream has changed and `may_change` is false.
  void follow_compute(const EngineUnit& unit, bool may_change);
  // Returns true if the running forward makes a graph.
  bool forward_has_graph() const { return forward_has_graph_; }
  // Waits for prefetches after a forward or backward threw. Errors of the wait are dropped, because
  // the caller gets the error of the pass.
  void wait_after_throw() noexcept;
  // Records the inputs and the graph leaves of the outermost call of the first forward
  // (unregistered_parameters.h).
  void look_for_unregistered(const std::vector<at::Tensor>& inputs,
                             const std::vector<at::Tensor>& leaves);
  bool looks_for_unregistered() const { return !unregistered_.is_done(); }

  // ---- backward ----

  // Captures the gradient of a parameter.
  // Errors: StateError if the unit cannot capture it.
  void take_gradient(EngineUnit& unit, int parameter, const at::Tensor& gradient);

  // Functions of ScheduledEngine, which the backward scheduler calls.
  void open(int unit, bool captures) override;
  void close(int unit, bool captures) override;
  void idle(int unit) override;
  void abandon(int unit) override;
  void end_forward(int unit, Call& call, bool failed) override;
  void finalize_backward() override;
  void abandon_backward() override;

  // Functions of UnitActions, which the schedule calls.
  ParameterState parameters(int unit) const override {
    return unit_at(unit).shard->parameters().state();
  }
  GradientState gradients(int unit) const override {
    return unit_at(unit).shard->gradients().state();
  }
  bool unshard(int unit, Urgency urgency) override;
  void wait_for_unshard(int unit) override { unit_at(unit).shard->parameters().wait_for_unshard(); }
  void reshard(int unit) override;
  void open_gradients(int unit, GradientSync sync) override;
  void keep_gradients(int unit) override;
  void reduce(int unit, bool across) override;
  void sum_across(int unit) override;
  void update(int unit) override;
  void abandon_gradients(int unit) override { unit_at(unit).shard->gradients().abandon(); }

  // ---- between passes ----

  // Returns the number of backwards that have reduced gradients since the engine was made.
  int64_t count() const { return count_; }
  // Creates gradient state for parameters that were frozen and now require a gradient.
  // Errors: StateError if there are gradients that no step has used yet.
  void unfreeze();
  // Stores the number of units that fsdp::Gathered currently holds.
  void set_gathered(int units) { gathered_ = units; }
  int gathered() const { return gathered_; }
  // Throws StateError if fsdp::Gathered holds any unit.
  void require_not_gathered(std::string_view call) const;
  void observe(Engine::EventObserver observer) { observer_ = std::move(observer); }
  // A function that is called after a gradient was captured. `is_sole`: no other holder had the
  // gradient when it arrived.
  using GradientObserver =
      std::function<void(int unit, int parameter, const at::Tensor& gradient, bool is_sole)>;
  void observe_gradients(GradientObserver observer) { on_gradient_ = std::move(observer); }

 private:
  void event(std::string_view name, int unit) const;
  void begin_backward(bool captures);
  void end_backward(bool captures);
  void settle_main_state() const;
  void forget_dropped_forwards();

  Parts parts_;
  std::unique_ptr<Pass> schedule_;
  Engine::EventObserver observer_;
  GradientObserver on_gradient_;
  UnregisteredParameters unregistered_;
  int64_t count_ = 0;
  int gathered_ = 0;
  bool looked_for_scaler_ = false;
  bool keeps_graph_ = false;        // true if the running backward keeps its graph
  bool forward_has_graph_ = false;  // true if the running forward makes a graph
};

// Returns the passes of all engines of a mesh.
std::vector<const EnginePass*> passes_of(const BackwardScheduler& scheduler);

}  // namespace fsdp
