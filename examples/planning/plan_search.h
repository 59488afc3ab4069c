// Plans around the one that was asked for: what else fits, and what would make it fit.
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

// Where nothing is said of the room everything fits.
bool fits(const Room& needed, const Room& room);

struct StrategyNeeds {
  std::string name;  // as --strategy takes it
  Room needed;
};

struct RanksNeeds {
  int ranks = 0;
  Room needed;
};

// A change and what the step takes then: with it alone, and with all that cost less.
struct ChangeNeeds {
  std::string change;  // "--prefetch 0"
  Room alone;
  Room together;
};

class PlanSearch {
 public:
  // `settings` live as long.
  // Errors, here and of all: as fsdp::plan; InvalidArgument kUsage where the model does not take
  //   such sequences.
  PlanSearch(const PlanSettings& settings, KnownModel model);

  // What was asked for.
  const fsdp::StepPlan& plan() const { return plan_; }
  Room needed() const { return room_of(plan_, settings_.ranks); }
  // The rows of the table that the mesh has (three need groups), but those that the other options
  // do not go with.
  std::vector<StrategyNeeds> strategies();
  // Of powers of two on one host, then of powers of two of hosts; empty: none fits.
  std::optional<RanksNeeds> smallest_ranks(const Room& room);
  // In order of cost, up to the first with which all together fit. Without those that take more of
  // a host than it has; and, unless they are needed, without those that save less than a twentieth
  // of what is missing of the device.
  // Requires: the plan does not fit a device.
  std::vector<ChangeNeeds> changes(const Room& room);

 private:
  fsdp::PlanRequest request(int ranks, const fsdp::Options& options) const;
  Room room_of(const fsdp::StepPlan& plan, int ranks) const;
  // Those that each save at least that much of the device.
  std::vector<ChangeNeeds> changes_saving(int64_t least, const Room& room);
  Room needs(int ranks, const fsdp::Options& options, int64_t sequences);

  const PlanSettings& settings_;
  const KnownModel model_;
  std::unique_ptr<fsdp::Planner> planner_;  // of the batch as it was asked for
  fsdp::StepPlan plan_;
};

}  // namespace planning
