// Implements the public entry point fsdp::Planner.
#include "fsdp/plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/planned_run.h"

namespace fsdp {

namespace {

// Removes the memory limit. A plan must report the bytes of a step even if they exceed the limit.
PlanRequest without_limit(PlanRequest request) {
  request.options.memory_limit = 0;
  return request;
}

// Runs the step again with the limit and stores where the step exceeds it.
void note_limit(StepPlan& plan, const PlanRequest& request, const PlannedRun::Build& build) {
  const int64_t limit = request.options.memory_limit;
  if (limit > 0 && plan.peak_bytes() > limit) plan.refused_at = place_beyond_limit(request, build);
}

}  // namespace

struct Planner::State {
  StepPlan plan(const PlanRequest& request);

  PlannedRun::Build build;
  std::vector<std::pair<StepKey, SeenStep>> seen;
};

StepPlan Planner::State::plan(const PlanRequest& request) {
  // The engine is always built anew. If an earlier plan had the same key, the results of that plan
  // are used, and no step runs LibTorch's operators. With rates they always run, because
  // the time of the operators is needed.
  PlannedRun run(request, build);
  StepKey key = run.key();
  const auto found = std::ranges::find(seen, key, &std::pair<StepKey, SeenStep>::first);
  const bool is_new = found == seen.end();
  StepPlan plan = is_new || request.rates ? run.steady_step() : run.replay(found->second);
  // A replay cannot reproduce learned bytes (MemoryPlan::learned_bytes), so a step with such bytes
  // is not reused.
  if (is_new && plan.memory.learned_bytes == 0) seen.emplace_back(std::move(key), run.seen(plan));
  if (request.checkpoints) plan.checkpoint = run.checkpoint_size(*request.checkpoints);
  return plan;
}

Planner::Planner(std::function<Model()> build)
    : state_(std::make_unique<State>(State{std::move(build), {}})) {}
Planner::~Planner() = default;

StepPlan Planner::plan(const PlanRequest& request) {
  StepPlan plan = state_->plan(without_limit(request));
  note_limit(plan, request, state_->build);
  return plan;
}

}  // namespace fsdp
