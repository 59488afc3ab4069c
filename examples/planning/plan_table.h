// Plans of several runs of one model, as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planning/command_line.h"
#include "planning/plan_search.h"
#include "planning/time_report.h"

namespace planning {

// One run.
struct TableRow {
  int ranks = 1;
  int hosts = 1;
  std::string strategy;   // a value of --strategy
  int64_t sequences = 0;  // per rank; 0: not even one fits
  Room needed;
  int64_t rest_bytes = 0;              // of a device between steps
  int64_t sent_bytes = 0;              // by a rank in a step
  int64_t checkpoint_bytes = 0;        // on disk; 0 without --save
  std::optional<fsdp::StepTime> time;  // set with --time
  std::optional<double> utilization;   // flops_utilization of `time`
  StepCost cost;                       // set with --price and --watts
  bool fits = true;
  int64_t parameters = 0;  // of the model
  int units = 0;
};

// Plans all combinations of PlanSettings::ranks_of, of the strategies, and of the batch. With
// PlanSettings::largest_batch, each row has the largest batch that fits. If not even one sequence
// per rank fits, the row has the needs of one. Strategies with groups are left out of numbers of
// ranks that have no groups.
// Errors: those of PlanSearch.
std::vector<TableRow> plan_rows(const PlanSettings& settings, Planners& planners);

// Returns the index of the row to recommend, or -1: of the rows that fit, the one with the fewest
// ranks, and of those the one that sends the fewest bytes per sequence. -1 also if the memory is
// not known.
int recommended(const PlanSettings& settings, const std::vector<TableRow>& rows);

// Returns the rows for people, and the recommended command line.
std::string table_text(const PlanSettings& settings, const KnownModel& model,
                       const std::vector<TableRow>& rows);
// Returns a line of JSON for each row.
std::string table_json(const PlanSettings& settings, const KnownModel& model,
                       const std::vector<TableRow>& rows);

}  // namespace planning
