// Plans a run before its model is built, and refuses the run if it cannot fit.
//
//   const auto plan = fsdp::plan_run(
//       mesh, options, {.force = run.force}, [&] { return fsdp::Unit<gpt::Gpt>(config); },
//       [&](fsdp::Unit<gpt::Gpt>& model) { return gpt::blank_loss(model, batch, length); });
//   if (plan) std::puts(plan->to_string().c_str());  // rank 0
//   fsdp::BuildScope building(mesh, options);
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/plan.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace fsdp {

struct RunPlanOptions {
  bool force = false;                               // true: a run that cannot fit is allowed
  OptimizerKind optimizer = OptimizerKind::kAdamW;  // PlanRequest::optimizer
  std::optional<CheckpointOptions> checkpoints{};   // PlanRequest::checkpoints
  std::optional<Rates> rates{};                     // PlanRequest::rates; only plan_run uses them
};

// Returns the request for a run on this mesh with these options. The request has the mesh's ranks,
// their arrangement and the device.
PlanRequest request_of(const Mesh& mesh, const Options& options);

// Checks that there is enough memory for a run with this plan.
// Errors: InvalidArgument (78) if the plan exceeds Options::memory_limit, or if the ranks of this
//   host together need more host memory than is free now. The hint lists remedies; the cheapest is
//   first.
void require_room(const Mesh& mesh, const StepPlan& plan, const Options& options);

// A strategy and the reason for it. If nothing was chosen, the reason is empty.
struct StrategyChoice {
  Strategy strategy = Strategy::kFullShard;
  std::string reason;  // "hybrid-shard, because …"
};

// Chooses the strategy of a run whose user has named none (RunOptions::names_strategy). If the
// ranks are on the CPUs of several hosts and each group of the mesh is a host, the choice is
// kHybridShard if its plan fits into the free memory of every host. Then only gradients travel
// between hosts. Otherwise the choice is kFullShard. In all other jobs nothing is chosen, and the
// result has options.strategy.
// Requires, and errors: those of plan_run.
StrategyChoice choose_strategy(const Mesh& mesh, const Options& options, const RunPlanOptions& how,
                               const std::function<StepPlan(const PlanRequest&)>& plan);
template <class Build, class Step>
StrategyChoice choose_strategy(const Mesh& mesh, const Options& options, const RunPlanOptions& how,
                               Build&& build, Step&& step) {
  return choose_strategy(mesh, options, how,
                         [&](const PlanRequest& request) { return plan(request, build, step); });
}

// Plans the step of a run on rank 0, and throws on all ranks if the step cannot fit. The function
// `plan` makes the plan. The other overload calls fsdp::plan with `build` and `step`. Returns the
// plan on rank 0 and nothing on the other ranks.
// Requires: collective, before the model is built. The options and the model are equal on all
//   ranks.
// Errors: rank 0 throws the errors of fsdp::plan and require_room. The other ranks then throw
//   RefusedElsewhere.
std::optional<StepPlan> plan_run(const Mesh& mesh, const Options& options,
                                 const RunPlanOptions& how,
                                 const std::function<StepPlan(const PlanRequest&)>& plan);
template <class Build, class Step>
std::optional<StepPlan> plan_run(const Mesh& mesh, const Options& options,
                                 const RunPlanOptions& how, Build&& build, Step&& step) {
  return plan_run(mesh, options, how,
                  [&](const PlanRequest& request) { return plan(request, build, step); });
}

}  // namespace fsdp
