// Plans variants of a run: other runs that fit, and changes that make it fit.
#pragma once

#include <fsdp/plan.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planning/command_line.h"
#include "planning/known_model.h"

namespace planning {

// Returns true if `needed` fits. An unknown (0) room holds everything.
bool fits(const Room& needed, const Room& room);

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

// A change and the memory that the step needs with it: alone, and together with the cheaper
// changes.
struct ChangeNeeds {
  std::string change;  // "--prefetch 0"
  Room alone;
  Room together;
};

// A search around the run of a command line.
class PlanSearch {
 public:
  // Requires: `settings` outlives this object.
  // Errors of all functions: as fsdp::plan; InvalidArgument kUsage if sequences are too long for
  // the
  //   model.
  PlanSearch(const PlanSettings& settings, KnownModel model);

  // Returns the plan of the run itself.
  const fsdp::StepPlan& plan() const { return plan_; }
  Room needed() const { return room_of(plan_, settings_.ranks); }
  // Returns the needs of all strategies, without those by groups if the mesh has no groups.
  std::vector<StrategyNeeds> strategies();
  // Returns the smallest number of ranks that fits, or nothing. Tries powers of two on one host,
  // then powers of two of hosts.
  std::optional<RanksNeeds> smallest_ranks(const Room& room);
  // Returns changes in order of cost, up to the first with which all together fit. Leaves out
  // changes that need more of a host than it has, and, unless they are necessary, changes that save
  // less than a twentieth of the device memory that is missing.
  // Requires: the plan does not fit a device.
  std::vector<ChangeNeeds> changes(const Room& room);

 private:
  fsdp::PlanRequest request(int ranks, const fsdp::Options& options) const;
  Room room_of(const fsdp::StepPlan& plan, int ranks) const;
  // Returns the changes that each save at least `least` bytes of the device.
  std::vector<ChangeNeeds> changes_saving(int64_t least, const Room& room);
  Room needs(int ranks, const fsdp::Options& options, int64_t sequences);

  const PlanSettings& settings_;
  const KnownModel model_;
  std::unique_ptr<fsdp::Planner> planner_;  // for the batch of the settings
  fsdp::StepPlan plan_;
};

}  // namespace planning
