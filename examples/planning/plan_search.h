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

struct StrategyBytes {
  std::string name;  // as --strategy takes it
  int64_t bytes = 0;
};

struct RanksBytes {
  int ranks = 0;
  int64_t bytes = 0;
};

// A change and what the device must have then: with it alone, and with all that cost less.
struct ChangeBytes {
  std::string change;  // "--prefetch 0"
  int64_t alone = 0;
  int64_t together = 0;
};

// Bytes are StepPlan::peak_bytes.
class PlanSearch {
 public:
  // `settings` live as long.
  // Errors, here and of all: as fsdp::plan; InvalidArgument kUsage where the model does not take
  //   such sequences.
  PlanSearch(const PlanSettings& settings, KnownModel model);

  // What was asked for.
  const fsdp::StepPlan& plan() const { return plan_; }
  // The rows of the table that the mesh has (three need groups), but those that the other options
  // do not go with.
  std::vector<StrategyBytes> strategies();
  // Of powers of two on one host, then of powers of two of hosts; empty: none fits.
  std::optional<RanksBytes> smallest_ranks(int64_t budget);
  // In order of cost, up to the first with which all together fit.
  std::vector<ChangeBytes> changes(int64_t budget);

 private:
  fsdp::PlanRequest request(int ranks, const fsdp::Options& options) const;
  fsdp::StepPlan plan(int ranks, const fsdp::Options& options, int64_t sequences);

  const PlanSettings& settings_;
  const KnownModel model_;
  std::unique_ptr<fsdp::Planner> planner_;  // of the batch as it was asked for
  fsdp::StepPlan plan_;
};

}  // namespace planning
