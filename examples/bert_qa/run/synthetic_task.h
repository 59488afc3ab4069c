// Training without data: synthetic windows, and how well a model answers the learnable ones.
#pragma once

#include <fsdp/engine.h>

#include <nlohmann/json_fwd.hpp>

#include "bert_qa/run/settings.h"
#include "bert_qa/run/training_windows.h"
#include "models/bert/bert_model.h"

namespace bert_qa {

// Requires: settings.data.source is not kFiles.
WindowSource synthetic_source(const Settings& settings, const bert::Config& config);

// exact_match over windows of another seed: both ends of the answer found, in per cent.
// Collective, equal on every rank.
nlohmann::ordered_json score_synthetic(const Settings& settings,
                                       fsdp::Unit<bert::QuestionAnswering> model,
                                       const fsdp::Engine& engine, const bert::Config& config);

}  // namespace bert_qa
