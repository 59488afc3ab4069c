// Formats the planned time of a step, its causes and its cost.
#pragma once

#include <fsdp/plan.h>

#include <cstdint>
#include <optional>
#include <string>

#include "planning/command_line.h"
#include "planning/known_model.h"

namespace planning {

// Returns "1.19 s", "512 ms" or "9.02 us".
std::string seconds_text(double seconds);
// Returns the tokens that a rank processes per second in a planned step.
double tokens_per_second(const BatchShape& batch, const fsdp::StepTime& time);
// Returns the model FLOPs utilization: the operations of the model, without those of recomputation,
// divided by those that the device could run at its peak. Unset if the rates have no peak of the
// run's type.
std::optional<double> flops_utilization(const PlanSettings& settings, const KnownModel& model,
                                        int64_t parameters, const fsdp::StepTime& time);
// Returns the operations of a step for each token. A product with a parameter needs two operations
// in forward and four in backward. For recomputed units the forward counts twice. The products of
// attention, for all pairs of tokens, count in the same way.
double operations_per_token(const PlanSettings& settings, const KnownModel& model,
                            int64_t parameters, int recompute);

// The interval of a step's time, by the errors of the rates: nine of ten steps on which the rates
// were tried deviated less from their prediction.
struct TimeInterval {
  int64_t least_ns = 0, most_ns = 0;
};
// Unset if the rates have no residuals.
std::optional<TimeInterval> interval_of(const fsdp::Rates& rates, const fsdp::StepTime& time);

// The longest part of a step.
struct SlowestPart {
  std::string part;   // "gathers"
  int64_t ns = 0;     // in which compute runs it or waits for it
  std::string cause;  // "the latency of 511 ring steps in each of 64 gathers"
};
SlowestPart slowest_part(const fsdp::Rates& rates, const fsdp::StepTime& time);

// The cost of a billion tokens, or of a billion samples for a model that does not predict tokens.
struct StepCost {
  std::optional<double> dollars;         // set with --price
  std::optional<double> kilowatt_hours;  // set with --watts
};
StepCost cost_of(const PlanSettings& settings, const KnownModel& model, const BatchShape& batch,
                 const fsdp::StepTime& time);
// Returns "token" or "sample".
std::string priced_unit(const KnownModel& model);
// Returns a cost with at least three digits: "0.0123", "78.2", "12345".
std::string cost_text(double cost);

// Returns the time of a step, its parts, their origins, the slowest part, the cost, and the basis.
// Empty if the plan has no time.
std::string time_text(const PlanSettings& settings, const KnownModel& model,
                      const fsdp::StepPlan& plan);

}  // namespace planning
