// Implements the public entry point fsdp::Planner.
#include "fsdp/plan.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "planner/planned_run.h"
#include "planner/time/operator_log.h"

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
  bool takes_time_of(const StepPlan& plan, const SeenStep& step, const PlanRequest& request) const;

  PlannedRun::Build build;
  std::vector<std::pair<StepKey, SeenStep>> seen;
};

// The engine is always built anew. If an earlier plan had the same key, the results of that plan
// are used, and no step runs LibTorch's operators.
StepPlan Planner::State::plan(const PlanRequest& request) {
  auto run = std::make_unique<PlannedRun>(request, build);
  StepKey key = run->key();
  const auto found = std::ranges::find(seen, key, &std::pair<StepKey, SeenStep>::first);
  const bool is_known = found != seen.end();
  const bool replays = is_known && request.trace_file.empty() &&
                       (!request.rates || found->second.has_work_of(*request.rates));
  StepPlan plan = replays ? run->replay(found->second) : run->steady_step();
  if (request.checkpoints) plan.checkpoint = run->checkpoint_size(*request.checkpoints);
  // A replay cannot reproduce learned bytes (MemoryPlan::learned_bytes), so a step with such bytes
  // is not reused.
  if (replays || plan.memory.learned_bytes != 0) return plan;
  SeenStep step = run->seen(plan);
  run.reset();  // a thread plans one run at a time
  if (step.work && !takes_time_of(plan, step, request)) step.work.reset();
  if (!is_known) {
    seen.emplace_back(std::move(key), std::move(step));
  } else if (step.work) {
    found->second = std::move(step);
  }
  return plan;
}

// Returns true if a replay of the recorded step takes the same time as the step. It does not if the
// engine did work that the record does not show, for example in a backward inside a forward. Then
// later plans with rates run LibTorch's operators again.
bool Planner::State::takes_time_of(const StepPlan& plan, const SeenStep& step,
                                   const PlanRequest& request) const {
  PlanRequest again = request;
  again.trace_file.clear();
  try {
    const StepTime replayed = PlannedRun(again, build).replay(step).time.value();
    return std::abs(replayed.total_ns - plan.time.value().total_ns) <= 1;
  } catch (const StateError&) {  // the engine refuses the record
    return false;
  }
}

Planner::Planner(std::function<Model()> build)
    : state_(std::make_unique<State>(State{std::move(build), {}})) {}
Planner::~Planner() = default;

StepPlan Planner::plan(const PlanRequest& request) {
  StepPlan plan = state_->plan(without_limit(request));
  note_limit(plan, request, state_->build);
  return plan;
}

PlayedOperators Planner::operators(PlanRequest request) {
  request.rates.reset();
  request.trace_file.clear();
  OperatorLog log;
  PlannedRun(without_limit(std::move(request)), state_->build, &log).steady_step();
  return log.operators();
}

}  // namespace fsdp
