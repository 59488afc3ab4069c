// Trains without a data set: makes synthetic windows, and scores a model on the learnable windows.
#pragma once

#include <fsdp/engine.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "bert_qa/run/answering.h"
#include "bert_qa/run/settings.h"
#include "bert_qa/run/training_windows.h"
#include "models/bert/bert_model.h"

namespace bert_qa {

// Returns a source of generated windows. Requires: settings.data.source is not kFiles.
WindowSource synthetic_source(const Settings& settings, const bert::Config& config);

// Returns exact_match over windows of another seed: the percentage of windows in which both ends of
// the answer, and its type if the model has answer types, are right. Returns nothing if it had to
// stop. Collective. The result is equal on every rank.
std::optional<nlohmann::ordered_json> score_synthetic(const Settings& settings,
                                                      fsdp::Unit<bert::QuestionAnswering> model,
                                                      const fsdp::Engine& engine,
                                                      const bert::Config& config,
                                                      const Evaluation& evaluation);

}  // namespace bert_qa
