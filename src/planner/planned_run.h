// One plan in the making: the engine, the optimizer and the user's code for rank 0, on a device
// without memory.
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

// What the engine was last told about, for errors.
struct PlannedPlace {
  std::string event, unit;
};

// What a step has shown that does not depend on how many ranks there are.
struct SeenStep {
  PassRecord pass;
  TorchMemoryPlan torch;
  std::vector<std::string> notes;
};

class PlannedRun {
 public:
  using Model = Planner::Model;
  using Build = std::function<Model()>;

  // Errors: as fsdp::plan; of a request with a limit, what a run ends with that passes it.
  PlannedRun(const PlanRequest& request, const Build& build);

  // Until nothing is learned any more: the first step shows the order of units, and one more what
  // the engine takes beyond it.
  StepPlan steady_step();
  // The step of another run, without LibTorch: its units are moved as they were there.
  // Requires: key() is the other run's.
  StepPlan replay(const SeenStep& seen);
  // One step. Errors: as the constructor.
  StepPlan step();
  // Of the last step.
  SeenStep seen(const StepPlan& plan);

  // Of two runs of one model and step equal if `seen` of one is what the other would see.
  // Requires: before the first step.
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

// StepPlan::refused_at of a run whose plan is more than the request's limit.
// Requires: without the limit it was planned.
std::string place_beyond_limit(PlanRequest request, const PlannedRun::Build& build);

}  // namespace fsdp
