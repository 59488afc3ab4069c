// The passes of an engine, boundary by boundary. Which unit is finished in backward, and when, is
// the clock's rule (backward_scheduler.h); what is gathered, resharded and reduced at a boundary is the
// schedule's (plan/pass.h); where the bytes go is shard's (shard_unit.h); what a boundary waits for
// is in docs/streams.md.
#pragma once

#include <fsdp/engine.h>

#include <memory>
#include <string_view>
#include <vector>

#include "engine/planned_memory.h"
#include "engine/sharded_model.h"
#include "engine/step_spans.h"
#include "engine/unregistered_parameters.h"
#include "plan/backward_scheduler.h"
#include "plan/pass.h"
#include "plan/unit_actions.h"
#include "shard/shard_context.h"

namespace fsdp {

// Not thread-safe: the clock's mutex covers it.
class EnginePass final : public ScheduledEngine, public UnitActions {
 public:
  // All live as long.
  struct Parts {
    ShardedModel& model;
    ShardContext& context;
    BackwardScheduler& clock;
    PlannedMemory& memory;
    StepSpans& steps;
  };
  explicit EnginePass(const Parts& parts) : of_(parts) {}

  const Parts& parts() const { return of_; }

  EngineUnit& unit_at(int unit) { return *of_.model.units[unit]; }
  const EngineUnit& unit_at(int unit) const { return *of_.model.units[unit]; }

  // Once, when the model has its units.
  void make_schedule(std::vector<UnitRules> rules, PassRecord hint);
  bool has_schedule() const { return schedule_ != nullptr; }
  Pass& schedule() { return *schedule_; }
  const Pass& schedule() const { return *schedule_; }

  // ---- forward: callers hold the clock's mutex ----

  // The outermost call of the engine begins, outside backward; it has returned, without an
  // exception.
  void begin_forward();
  void end_forward(bool in_graph);
  // A call begins: behind it the unit's parameters are whole, and `call` is the innermost that
  // runs.
  void begin_call(EngineUnit& unit, const std::shared_ptr<Call>& call);
  // Its forward has returned.
  void end_call(EngineUnit& unit, const Call& call);
  // Before work on compute: makes LibTorch's current stream compute, if it `may_change`.
  // Errors: StateError if it has changed and may not.
  void follow_compute(const EngineUnit& unit, bool may_change);
  // Backward can reach what the forward under way makes.
  bool forward_has_graph() const { return forward_has_graph_; }
  // A forward or backward has thrown, and the caller gets that error.
  void wait_after_throw() noexcept;
  // [unregistered_parameters.h] Takes what the outermost call of a first forward has used.
  void look_for_unregistered(const std::vector<at::Tensor>& inputs,
                             const std::vector<at::Tensor>& leaves);
  bool looks_for_unregistered() const { return !unregistered_.is_done(); }

  // ---- backward ----

  // The gradient of a parameter was made. Errors: StateError where the unit cannot take it.
  void take_gradient(EngineUnit& unit, int parameter, const at::Tensor& gradient);

  // The clock's questions.
  void open(int unit, bool captures) override;
  void close(int unit, bool captures) override;
  void idle(int unit) override;
  void abandon(int unit) override;
  void end_forward(int unit, Call& call, bool failed) override;
  void finalize_backward() override;
  void abandon_backward() override;

  // The schedule's.
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
  void abandon_gradients(int unit) override { unit_at(unit).shard->gradients().abandon(); }

  // ---- between passes ----

  // Backwards that have reduced, since the engine was made.
  int64_t count() const { return count_; }
  // Gives gradients to what was frozen and now requires one. Errors: StateError where gradients
  // wait for a step.
  void unfreeze();
  // fsdp::Gathered holds this many units.
  void set_gathered(int units) { gathered_ = units; }
  int gathered() const { return gathered_; }
  // Errors: StateError if it holds any.
  void require_not_gathered(std::string_view call) const;
  void observe(Engine::EventObserver observer) { observer_ = std::move(observer); }

 private:
  void event(std::string_view name, int unit) const;
  void begin_backward();
  void end_backward(bool captures);
  void sync_changes(bool rebinds);
  void check_touched_units();
  void settle_main_state() const;
  void forget_dropped_forwards();

  Parts of_;
  std::unique_ptr<Pass> schedule_;
  Engine::EventObserver observer_;
  UnregisteredParameters unregistered_;
  int64_t count_ = 0;
  int gathered_ = 0;
  bool looked_for_scaler_ = false;
  bool keeps_graph_ = false;        // the backward under way
  bool forward_has_graph_ = false;  // the forward under way
};

// Of all engines of a mesh.
std::vector<const EnginePass*> passes_of(const BackwardScheduler& clock);

}  // namespace fsdp
