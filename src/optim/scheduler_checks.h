// Checks of options and loaded states that all learning-rate schedulers share.
#pragma once

#include <memory>
#include <string_view>

#include "fsdp/lr_scheduler.h"

namespace fsdp {

inline constexpr const char* kLearningRateHint = "use a finite learning rate of 0 or more";

// Throws InvalidArgument "StepLR: step_size is 0; hint: …" if `holds` is false. Optimizers check
// their options with it, too.
void require_option(bool holds, std::string_view owner, std::string_view option, double value,
                    std::string_view allowed);

// Registers a scheduler with the optimizer's engine. Destroying the result ends the registration.
std::shared_ptr<const TrainingPlace> place_of_scheduler(Optimizer& optimizer,
                                                        std::string_view name);

// Throws InvalidArgument if `given` does not have the same names as `own`.
void require_same_names(const LRSchedulerState& own, const LRSchedulerState& given);

}  // namespace fsdp
