// The parts of an engine, and its work between passes. Its optimizers hold them as well.
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

// The state behind an Engine. Members are in the order of their construction: each may use those
// above it.
class EngineParts : public std::enable_shared_from_this<EngineParts> {
 public:
  EngineParts(std::shared_ptr<torch::nn::Module> root, Options options,
              std::unique_ptr<ShardContext> context);
  ~EngineParts();

  // Ends the engine: parameters stay unreadable, units are destroyed. An optimizer that still holds
  // this object can only be destroyed then.
  void shut_down() noexcept;
  bool is_shut_down() const { return model.units.empty(); }
  // Throws StateError if the engine is gone, or inside a forward or backward. Else follow_compute.
  void require_between_passes(std::string_view call) const;
  // Makes the thread's current stream compute (CommStreams::follow_compute). If a device fails
  // there, the error names `call`.
  void follow_compute(std::string_view call) const;

  // Counts bytes of optimizer state; negative ones are returned.
  // Errors: InvalidArgument if the memory limit has no room for them beside the plan; they are not
  // counted then.
  void add_optimizer_state(int64_t bytes);
  // Measures the gradients of `chosen`. The optimizer's kernels clip them to `max_norm`, if it is
  // finite.
  GradientMeasure::Measured measure_gradients(double norm_type, double max_norm,
                                              const ChosenParameters& chosen = {});
  // Clears the gradients of `chosen`.
  void zero_grad(const ChosenParameters& chosen = {});
  // Arms the trap before main shards are handed out. If the trap is not available, a warning says
  // why.
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

// Access to an Engine's parts for the layers above.
struct EngineAccess {
  static EngineParts& state(Engine& engine) { return *engine.state_; }
};
inline EngineParts& state_of(Engine& engine) { return EngineAccess::state(engine); }

}  // namespace fsdp
