// Sums up a training: metrics.json and the memory of the rank that used the most.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/plan.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "training/train_summary.h"

namespace bert_qa {

// Returns the entries of metrics.json about the training. Collective. `plan` is set on rank 0.
nlohmann::ordered_json training_metrics(const training::TrainSummary& summary,
                                        const fsdp::Engine& engine,
                                        const std::optional<fsdp::StepPlan>& plan);

// Returns device_use() on rank 0, which has the plan. Returns an empty text if there is no memory
// limit, or if no step ran. Collective.
std::string device_use_of(const fsdp::Engine& engine, const std::optional<fsdp::StepPlan>& plan,
                          const training::TrainSummary& measured);

}  // namespace bert_qa
