// The engine's pass: what happens at each boundary of forward and backward, in order.
#pragma once

#include <fsdp/engine.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_unit.h"
#include "engine/gradient_measure.h"
#include "engine/live_units.h"
#include "engine/module_walk.h"
#include "engine/planned_memory.h"
#include "engine/step_spans.h"
#include "engine/stray_leaves.h"
#include "engine/training_objects.h"
#include "plan/clock.h"
#include "plan/pass.h"
#include "shard/shard_context.h"

namespace fsdp {

class EngineState : public ClockedEngine, public std::enable_shared_from_this<EngineState> {
 public:
  EngineState(std::shared_ptr<torch::nn::Module> root, Options options,
              std::unique_ptr<ShardContext> context);
  ~EngineState() override;

  // The end of the Engine: parameters stay unreadable, units are gone. What optimizers hold of this
  // object is a shell then, on which nothing but their own end works.
  void shut_down() noexcept;
  bool is_shut_down() const { return units.empty(); }
  // Errors: StateError if the engine is gone, or inside a forward or backward.
  void require_between_passes(std::string_view call) const;
  void require_not_gathered(std::string_view call) const;
  // ShardContext::follow_compute; a device that fails does so in `call`.
  void follow_compute(std::string_view call) const;

  // Finds and takes the root's units; collective. `building` is null for a plainly built model.
  // Once, right after construction (a unit's hooks need the state to be owned).
  void attach(BuildScope::State* building);

  // Forward (unit_call.cpp calls these under the clock's mutex).
  void begin_forward();
  void end_forward(bool in_graph);
  // Whether backward can reach what the forward under way makes.
  bool forward_has_graph() const { return forward_has_graph_; }
  void wait_after_throw() noexcept;
  void guard_gradients();
  void pre_forward(EngineUnit& unit, ForwardCall& call);
  void post_forward(EngineUnit& unit, const ForwardCall& call);

  // Backward (the clock calls these).
  void begin_backward() override;
  void finalize_backward() override;
  void abandon_backward() override;
  void open_unit(EngineUnit& unit, bool captures);
  void close_unit(EngineUnit& unit, bool captures);
  void rest_unit(EngineUnit& unit);

  // [stray_leaves.h] What the outermost call of a first forward has used.
  void look_for_strays(const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& leaves);

  void event(std::string_view name, const EngineUnit& unit) const {
    if (observer) observer(name, unit.shard->fqn());
  }

  // Optimizers say how many bytes they keep, and give them back. Errors: InvalidArgument where the
  // memory limit has no room for them beside the plan; then they are not counted.
  void add_optimizer_state(int64_t bytes);
  // `max_norm`: what the optimizer's kernels are to clip to; infinite: nothing.
  GradientMeasure::Measured measure_gradients(double norm_type, double max_norm);
  void zero_grad();
  // Before main shards are handed out: from then on operators on them are seen, or a warning says
  // why they cannot be.
  void watch_shards();
  // At the first backward: float16 without a LossScaler.
  void warn_of_unscaled_float16();
  // EngineUnit::follow_zero_grad of all units by policy. Requires: the clock's mutex.
  void follow_zero_grads();
  // What was frozen and now requires a gradient is to get one. Errors: StateError where gradients
  // wait for a step.
  void unfreeze();
  int find_unit(std::string_view fqn) const;  // Errors: InvalidArgument listing what exists

  const std::shared_ptr<torch::nn::Module> root;
  const Options options;
  std::unique_ptr<ShardContext> context;
  const std::shared_ptr<Clock> clock;  // shared by the engines of a mesh
  std::vector<std::shared_ptr<EngineUnit>> units;
  std::vector<int> parents;
  std::vector<std::string> module_names;  // by unit: the types of their modules
  std::vector<UnitOptions> own_options;   // by unit: Options and its unit_options, all set
  LiveUnits actions{*this};
  std::unique_ptr<Pass> pass;
  PlannedMemory memory{*context, units};
  GradientMeasure gradients{*context, units};
  StepSpans steps{context->spans};
  Engine::EventObserver observer;
  int64_t passes = 0;
  StrayLeaves strays;
  const std::shared_ptr<TrainingObjects> training = std::make_shared<TrainingObjects>();
  int gathered = 0;  // units seated by Gathered

 private:
  void end_backward(bool captures);
  void settle_main_state() const;
  void keep_limit();
  void absorb_changes(bool reseats);
  void refuse_strays();
  void forget_records();
  void forget_dropped_forwards();
  void check_touched_units();
  bool has_gradients() const;
  void check_takable(const std::vector<FoundUnit>& found);
  void add_unit(const FoundUnit& found, const UnitOptions& own, BuildScope::State* building);
  static std::shared_ptr<Clock> clock_of(const Mesh& mesh);

  bool tried_to_watch_ = false;
  bool looked_for_scaler_ = false;
  bool keeps_graph_ = false;  // the backward under way
  bool forward_has_graph_ = false;
};

}  // namespace fsdp
