// fsdp-plan's command line: what is planned, and what there is for it.
#pragma once

#include <fsdp/run_options.h>

#include <cstdint>
#include <string>

#include "planning/known_model.h"

namespace planning {

struct PlanSettings {
  std::string model;
  int ranks = 1;
  int hosts = 1;
  BatchShape batch;
  int64_t memory_bytes = 0;         // of a rank's device; 0: nothing is said
  double gigabytes_per_second = 0;  // into and out of a rank, of 10^9; 0: nothing is said
  double teraflops_per_second = 0;  // that a rank achieves, of 10^12
  fsdp::RunOptions run;
  std::string help;  // if not empty: print it, do nothing else

  // What the step must fit in: --memory or --memory-limit, the smaller; 0: nothing is said.
  int64_t budget() const;
};

// Errors: InvalidArgument kUsage, with the nearest flag or name.
PlanSettings parse_command_line(int argc, const char* const* argv);

}  // namespace planning
