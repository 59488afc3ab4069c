// The parts of an engine, and what happens between its passes. Its optimizers hold them, too.
#pragma once

#include <fsdp/engine.h>

#include <memory>
#include <string_view>

#include "engine/engine_pass.h"
#include "engine/gradient_measure.h"
#include "engine/planned_memory.h"
#include "engine/sharded_model.h"
#include "engine/step_spans.h"
#include "engine/training_objects.h"
#include "plan/backward_scheduler.h"
#include "shard/shard_context.h"

namespace fsdp {

class EngineParts : public std::enable_shared_from_this<EngineParts> {
 public:
  EngineParts(std::shared_ptr<torch::nn::Module> root, Options options,
              std::unique_ptr<ShardContext> context);
  ~EngineParts();

  // The end of the Engine: parameters stay unreadable, units are gone. What optimizers hold of this
  // object is a shell then, on which nothing but their own end works.
  void shut_down() noexcept;
  bool is_shut_down() const { return model.units.empty(); }
  // Errors: StateError if the engine is gone, or inside a forward or backward.
  void require_between_passes(std::string_view call) const;
  // CommStreams::follow_compute; a device that fails does so in `call`.
  void follow_compute(std::string_view call) const;

  // Optimizers say how many bytes they keep, and give them back. Errors: InvalidArgument where the
  // memory limit has no room for them beside the plan; then they are not counted.
  void add_optimizer_state(int64_t bytes);
  // `max_norm`: what the optimizer's kernels are to clip to; infinite: nothing.
  GradientMeasure::Measured measure_gradients(double norm_type, double max_norm,
                                              const ChosenParameters& chosen = {});
  void zero_grad(const ChosenParameters& chosen = {});
  // Before main shards are handed out: from then on operators on them are seen, or a warning says
  // why they cannot be.
  void watch_shards();

  const std::unique_ptr<ShardContext> context;
  const std::shared_ptr<BackwardScheduler> clock;  // shared by the engines of a mesh
  ShardedModel model;
  PlannedMemory memory{*context, model.units};
  GradientMeasure gradients{*context, model.units};
  StepSpans steps{context->spans};
  EnginePass pass{{model, *context, *clock, memory, steps}};
  const std::shared_ptr<TrainingObjects> training = std::make_shared<TrainingObjects>();

 private:
  bool tried_to_watch_ = false;
};

// The way into an Engine, for the layers above.
struct EngineAccess {
  static EngineParts& state(Engine& engine) { return *engine.state_; }
};
inline EngineParts& state_of(Engine& engine) { return EngineAccess::state(engine); }

}  // namespace fsdp
