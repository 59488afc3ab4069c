// The plan of a run, made before the run has anything: what it will take, and whether that can be.
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
#include <utility>

namespace fsdp {

struct RunPlanOptions {
  bool force = false;         // what cannot fit is not refused
  int optimizer_moments = 2;  // PlanRequest::optimizer_moments
};

// What a run on this mesh asks of a plan: its ranks as they are arranged, its device, its options.
PlanRequest request_of(const Mesh& mesh, const Options& options);

// Errors: InvalidArgument (78) where the plan is more than Options::memory_limit, or where the
//   ranks of this host together need more of its memory than is free now; with what to change, in
//   order of cost.
void require_room(const Mesh& mesh, const StepPlan& plan, const Options& options);

// Plans the step of a run, on rank 0, and refuses what cannot fit, on all ranks: by `plan`, or with
// `build` and `step` as for fsdp::plan. Returns the plan on rank 0, nothing elsewhere.
// Requires: collective, before the model is built; the command line and the model agree on all
//   ranks.
// Errors: as fsdp::plan and require_room, on rank 0; RefusedElsewhere on the others.
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
