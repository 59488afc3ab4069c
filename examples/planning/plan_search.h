// Plans variants of a run. It finds other runs that fit, and changes with which the run fits.
#pragma once

#include <fsdp/plan.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planning/command_line.h"
#include "planning/known_model.h"

namespace planning {

// Returns true if `needed` fits. If the available memory is unknown (0), everything fits.
bool fits(const Room& needed, const Room& room);

// Sets LibTorch's threads to those that a rank of this run has, because kernels allocate scratch
// for each thread.
void use_threads_of(const PlanSettings& settings);

// The memory that a strategy needs.
struct StrategyNeeds {
  std::string name;  // a value of --strategy
  Room needed;
};

// The memory that a number of ranks needs.
struct RanksNeeds {
  int ranks = 0;
  Room needed;
};

// A change and the memory that the step then needs: with this change alone, and together with the
// cheaper changes.
struct ChangeNeeds {
  std::string change;  // "--prefetch 0"
  Room alone;
  Room together;
};

// Planners of a model for batches of any size. The plans of one batch share the work that does not
// depend on the run.
class Planners {
 public:
  // `length`: tokens per sequence. Errors: InvalidArgument kUsage if it is too long for the model.
  Planners(KnownModel model, int64_t length);

  const KnownModel& model() const { return model_; }
  // Returns the planner for `sequences` per rank and the present number of threads, which scratch
  // memory depends on. Errors: those of planner_of.
  fsdp::Planner& of(int64_t sequences);

 private:
  const KnownModel model_;
  const int64_t length_;
  std::map<std::pair<int64_t, int>, std::unique_ptr<fsdp::Planner>> planners_;
};

// Chooses the strategy of a run that names none, as fsdp::choose_strategy does for a real run: on
// the CPUs of several hosts, hybrid shard if it fits.
void choose_strategy(PlanSettings& settings, Planners& planners);

// A search for variants of the run on a command line.
class PlanSearch {
 public:
  // Requires: the arguments outlive this object.
  // Errors of all functions: as fsdp::plan.
  PlanSearch(const PlanSettings& settings, Planners& planners);

  // Returns the plan of the requested run.
  const fsdp::StepPlan& plan() const { return plan_; }
  Room needed() const { return room_of(plan_, settings_.ranks); }
  // Returns the needs of all strategies. If the mesh has no groups, strategies with groups are left
  // out.
  std::vector<StrategyNeeds> strategies();
  // Returns the smallest number of ranks that fits, or nothing. Tries powers of two on one host,
  // then powers of two for the number of hosts.
  std::optional<RanksNeeds> smallest_ranks(const Room& room);
  // Returns changes in the order of their cost. The list ends with the first change with which all
  // together fit. Leaves out changes that need more host memory than there is. Also leaves out
  // unnecessary changes that save less than a twentieth of the missing device memory.
  // Requires: the plan does not fit on a device.
  std::vector<ChangeNeeds> changes(const Room& room);

 private:
  fsdp::PlanRequest asked() const;  // for plan()
  fsdp::PlanRequest request(int ranks, const fsdp::Options& options) const;
  Room room_of(const fsdp::StepPlan& plan, int ranks) const;
  // Returns the changes that each save at least `least` bytes on the device.
  std::vector<ChangeNeeds> changes_saving(int64_t least, const Room& room);
  Room needs(int ranks, const fsdp::Options& options, int64_t sequences);

  const PlanSettings& settings_;
  Planners& planners_;
  fsdp::StepPlan plan_;
};

}  // namespace planning
