// Runs one plan: the engine, the optimizer and the user's code for rank 0, on a device without
// memory.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libtorch/torch_memory.h"
#include "memory/memory_meter.h"
#include "meta/meta_mode.h"
#include "plan/pass_record.h"
#include "planner/planned_mesh.h"
#include "planner/step_key.h"

namespace fsdp {

// The engine's last event, for errors.
struct PlannedPlace {
  std::string event, unit;
};

// Results of a step that do not depend on the number of ranks.
struct SeenStep {
  PassRecord pass;
  TorchMemoryPlan torch;
  std::vector<std::string> notes;
};

// One plan: model, engine and optimizers on the meta device. It is MetaMode while it lives, so
// LibTorch's factories in its thread make tensors without memory.
class PlannedRun {
 public:
  using Model = Planner::Model;
  using Build = std::function<Model()>;

  // Errors: as fsdp::plan; with a memory limit, the errors of a run that exceeds it.
  PlannedRun(const PlanRequest& request, const Build& build);

  // Runs steps until two in a row are equal: the first step records the order of units, a further
  // one the engine's bytes beyond the record.
  StepPlan steady_step();
  // Returns the plan of a step that another run has seen, without running LibTorch: the engine
  // plays the other run's record. Requires: key() equals the other run's.
  StepPlan replay(const SeenStep& seen);
  // Runs one step. Errors: as the constructor.
  StepPlan step();
  // Returns the results of the last step, whose plan is `plan`.
  SeenStep seen(const StepPlan& plan);

  // Returns a key that is equal for two runs of one model and step if both would see the same.
  // Requires: no step has run yet.
  StepKey key();

 private:
  static constexpr int kMostSteps = 4;

  Model built(const Build& build) const;
  at::Tensor forward();
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
};

// Returns StepPlan::refused_at of a run whose plan exceeds the request's limit.
// Requires: the run was planned without the limit.
std::string place_beyond_limit(PlanRequest request, const PlannedRun::Build& build);

}  // namespace fsdp
