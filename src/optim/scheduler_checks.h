// Checks that learning-rate schedulers share, for their options and their loaded state.
#pragma once

#include <memory>
#include <string_view>

#include "fsdp/lr_scheduler.h"

namespace fsdp {

inline constexpr const char* kLearningRateHint = "use a finite learning rate of 0 or more";

// Throws InvalidArgument "StepLR: step_size is 0; hint: …" unless `holds`.
void require_option(bool holds, std::string_view scheduler, std::string_view option, double value,
                    std::string_view allowed);

// Registers a scheduler with the optimizer's engine for as long as the result lives.
std::shared_ptr<const TrainingPlace> place_of_scheduler(Optimizer& optimizer,
                                                        std::string_view name);

// Throws InvalidArgument unless `given` has the names of `own`.
void require_same_names(const LRSchedulerState& own, const LRSchedulerState& given);

}  // namespace fsdp
