// Whoever asks for a plan.
#include "fsdp/plan.h"

#include <map>
#include <utility>

#include "planner/planned_run.h"

namespace fsdp {

StepPlan plan_detail::plan(const PlanRequest& request, const std::function<PlannedModel()>& build) {
  return PlannedRun(request, build).steady_step();
}

struct Planner::State {
  std::function<plan_detail::PlannedModel()> build;
  std::map<std::string, SeenStep> seen;  // by PlannedRun::of_what
};

Planner::Planner(std::function<plan_detail::PlannedModel()> build)
    : state_(std::make_unique<State>(State{std::move(build), {}})) {}
Planner::~Planner() = default;

StepPlan Planner::plan(const PlanRequest& request) {
  PlannedRun run(request, state_->build);
  const std::string what = run.of_what();
  const auto found = state_->seen.find(what);
  if (found != state_->seen.end()) return run.replay(found->second);
  StepPlan plan = run.steady_step();
  // What was learned beyond the record is no part of it.
  if (plan.memory.learned_bytes == 0) state_->seen.emplace(what, run.seen(plan));
  return plan;
}

}  // namespace fsdp
