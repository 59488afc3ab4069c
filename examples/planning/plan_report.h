// Formats a plan as text of at most 80 columns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "planning/command_line.h"
#include "planning/known_model.h"
#include "planning/plan_search.h"

namespace planning {

// Returns the model's name, its description and its size.
std::string title_of(const KnownModel& model, int64_t parameters, int units);
// Returns the type of forward and backward: "bfloat16".
std::string_view type_name(const fsdp::MixedPrecision& types);

// Returns the planned run, its bytes by category and phase, and its traffic. With --time, it
// also has the time of the step. With --bandwidth and --flops, it states whether communication can
// be hidden behind compute.
std::string describe_plan(const PlanSettings& settings, const KnownModel& model,
                          const fsdp::StepPlan& plan);

// The result of comparing the plan with the memory of a device and a host.
struct Verdict {
  bool fits = true;
  std::string text;    // other runs that fit, and changes that make this one fit; at most a line if
                       // no memory is given
  std::string remedy;  // if it does not fit: the changes with which it does, in one line
};
Verdict judge(const PlanSettings& settings, PlanSearch& search);

}  // namespace planning
