// A plan for people, in at most 80 columns.
#pragma once

#include <string>

#include "planning/command_line.h"
#include "planning/known_model.h"
#include "planning/plan_search.h"

namespace planning {

// What is planned, its bytes by category and phase, and what goes over the wire; with --bandwidth
// and --flops, whether that can hide behind compute.
std::string describe_plan(const PlanSettings& settings, const KnownModel& model,
                          const fsdp::StepPlan& plan);

// How the plan stands to what a device and a host have.
struct Verdict {
  bool fits = true;
  std::string text;    // what else fits, and what would make it fit; a line at most where nothing
                       // is said of the room
  std::string remedy;  // where it does not fit: the changes with which it does, in one line
};
Verdict judge(const PlanSettings& settings, PlanSearch& search);

}  // namespace planning
