// Training without data: synthetic windows, and how well a model answers the learnable ones.
#pragma once

#include <fsdp/engine.h>

#include <nlohmann/json_fwd.hpp>

#include "bert_model.h"
#include "settings.h"
#include "training_windows.h"

namespace bert_qa {

// Requires: settings.data.source is not kFiles.
WindowSource synthetic_source(const Settings& settings, const fsdp::ModelConfig& config);

// exact_match over windows of another seed: both ends of the answer found, in per cent.
// Collective, equal on every rank.
nlohmann::ordered_json score_synthetic(const Settings& settings,
                                       fsdp::Unit<QuestionAnswering> model,
                                       const fsdp::Engine& engine, const fsdp::ModelConfig& config);

}  // namespace bert_qa
