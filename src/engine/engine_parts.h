// The parts of an engine, and its work between passes. Optimizers of the engine also share the
// ownership of these parts.
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
#include "engine/unit_updates.h"
#include "plan/backward_scheduler.h"
#include "shard/shard_context.h"

namespace fsdp {

// The state behind an Engine. Members are declared in the order of their construction: each may use
// the members above it.
class EngineParts : public std::enable_shared_from_this<EngineParts> {
 public:
  EngineParts(std::shared_ptr<torch::nn::Module> root, Options options,
              std::unique_ptr<ShardContext> context);
  ~EngineParts();

  // Ends the engine: parameters stay unreadable, and units are destroyed. If an optimizer still
  // holds this object, the optimizer must not be used any more, only destroyed.
  void shut_down() noexcept;
  bool is_shut_down() const { return model.units.empty(); }
  // Throws StateError if the engine was shut down, or inside a forward or backward. Otherwise calls
  // follow_compute.
  void require_between_passes(std::string_view call) const;
  // Makes the calling thread's current stream the compute stream (CommStreams::follow_compute). If
  // the device fails during this, the error names `call`.
  void follow_compute(std::string_view call) const;

  // Adds `bytes` of optimizer state or checkpoint staging to the counted memory. Negative bytes are
  // subtracted.
  // Errors: InvalidArgument if the memory limit has no room for the plan and these bytes. In this
  //   case the bytes are not counted.
  void add_memory(MemoryCategory category, int64_t bytes);
  // Measures the gradients of `chosen`. If `max_norm` is finite, the optimizer's kernels later clip
  // the gradients to it.
  GradientMeasure::Measured measure_gradients(double norm_type, double max_norm,
                                              const ChosenParameters& chosen = {});
  // Clears the gradients of `chosen`.
  void zero_grad(const ChosenParameters& chosen = {});
  // Arms the trap (touch_trap.h). Must be called before main shards are returned to the user. If
  // the trap is not available, a warning states the reason.
  void watch_shards();

  const std::unique_ptr<ShardContext> context;
  const std::shared_ptr<BackwardScheduler> scheduler;  // shared by the engines of a mesh
  ShardedModel model;
  PlannedMemory memory{*context, model.units};
  GradientMeasure gradients{*context, model.units};
  StepSpans steps{context->spans};
  const std::shared_ptr<TrainingObjects> training = std::make_shared<TrainingObjects>();
  UnitUpdates updates{*context, *training};
  EnginePass pass{{model, *context, *scheduler, memory, steps, updates}};

 private:
  bool tried_to_watch_ = false;
};

// Access to an Engine's parts for the layers above.
struct EngineAccess {
  static EngineParts& state(Engine& engine) { return *engine.state_; }
};
inline EngineParts& state_of(Engine& engine) { return EngineAccess::state(engine); }

}  // namespace fsdp
