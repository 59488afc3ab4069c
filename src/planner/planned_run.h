// Runs one plan: the engine, the optimizer and the user's code of rank 0, on a device without
// memory.
#pragma once

#include <fsdp/ema.h>
#include <fsdp/engine.h>
#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state_part.h"
#include "libtorch/torch_memory.h"
#include "memory/memory_meter.h"
#include "meta/meta_mode.h"
#include "planner/planned_mesh.h"
#include "planner/seen_step.h"
#include "planner/step_key.h"

namespace fsdp {

// The engine's last event and its unit, which errors name.
struct PlannedPlace {
  std::string event, unit;
};

// One plan: the model, the engine and the optimizers on the meta device. A MetaMode is active while
// the object exists, so LibTorch's factories in this thread make tensors without memory.
class PlannedRun {
 public:
  using Model = Planner::Model;
  using Build = std::function<Model()>;

  // `watch` observes the operators instead of the clock of the rates; null: the clock does.
  // Errors: as fsdp::plan; with a memory limit, the errors of a run that exceeds the limit.
  PlannedRun(const PlanRequest& request, const Build& build, OperatorWatch* watch = nullptr);

  // Runs steps until two consecutive steps are equal. The first step records the order of units. A
  // later step learns bytes that the record does not show (MemoryPlan::learned_bytes).
  StepPlan steady_step();
  // Returns the plan of a step without running LibTorch. The engine repeats the events that another
  // run recorded in `seen`. Requires: key() equals the key of the other run. With rates, `seen` has
  // work.
  StepPlan replay(const SeenStep& seen);
  // Runs one step, and records it if `recorder` is not null. Errors: as the constructor.
  StepPlan step(StepRecorder* recorder = nullptr);
  // Returns the results of steady_step, which returned `plan`.
  SeenStep seen(const StepPlan& plan);

  // Returns the parts of a checkpoint of the run, and its size (StepPlan::checkpoint).
  std::vector<StatePart> parts_of_checkpoint(const CheckpointOptions& options);
  CheckpointSize checkpoint_size(const CheckpointOptions& options);

  // Returns a key. If two runs have equal keys, LibTorch runs the same operators in their steps and
  // allocates the same bytes.
  // Requires: no step has run yet.
  StepKey key();

 private:
  static constexpr int kMostSteps = 4;

  Model built(const Build& build) const;
  at::Tensor forward();
  void clip();
  void update();
  void describe_engine(StepPlan& plan);
  int64_t torch_now() const { return meter_->reading().now.torch; }
  int64_t torch_peak() const { return meter_->reading().peaks.torch; }

  const std::shared_ptr<MemoryMeter> meter_ = std::make_shared<MemoryMeter>();
  const PlanRequest request_;
  PlannedPlace place_;
  PlannedMesh mesh_;
  MetaMode mode_;
  torch_memory::MeterScope metered_;
  Model model_;
  Engine engine_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  std::optional<Ema> ema_;
  std::optional<std::vector<SeenWork>> work_;  // SeenStep::work of the timed step
};

// Returns the place in the step at which an allocation would first exceed the memory limit that the
// request gives (StepPlan::refused_at). Plans the step once more, with this limit.
// Requires: the step was planned without a limit before, so only the limit can make it fail.
std::string place_beyond_limit(PlanRequest request, const PlannedRun::Build& build);

}  // namespace fsdp
