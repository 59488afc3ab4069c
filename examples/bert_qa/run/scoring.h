// Scores a model: on the validation questions, or on learnable windows.
#pragma once

#include <fsdp/engine.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/run/answering.h"
#include "bert_qa/run/questions.h"
#include "bert_qa/run/settings.h"
#include "models/bert/bert_model.h"

namespace bert_qa {

// A model and its questions.
struct Scoring {
  const Settings& settings;
  fsdp::Unit<bert::QuestionAnswering> model;
  const fsdp::Engine& engine;
  const bert::Config& config;
  const Questions* questions = nullptr;  // null without --validation-file
};

// Returns the metrics of a task by which models can be compared, the default first.
std::vector<std::string_view> metric_names(Task task);

// Returns the metrics by which models of this run can be compared, the default first. Empty if the
// run has nothing to score.
std::vector<std::string_view> metrics_of(const Settings& settings);

// Scores the model on the questions or, with --data learnable, on windows. Returns no metrics if
// the run has neither, and nothing if it had to stop. Collective. The result is equal on every
// rank. Afterwards the model is in evaluation mode.
std::optional<nlohmann::ordered_json> score_model(const Scoring& scoring,
                                                  const Evaluation& evaluation);

// Answers the questions, writes and shows the answers, and returns the scores on rank 0. Without
// `folder` no file is written. Returns nothing if it had to stop. Collective.
std::optional<nlohmann::ordered_json> answer_questions(const Scoring& scoring,
                                                       const std::filesystem::path& folder,
                                                       const Evaluation& evaluation);

// Returns "exact match 61.54, F1 70.01", or the two F1 of Natural Questions in per cent. If `end`
// is not empty, it follows each score.
std::string scores_text(const nlohmann::ordered_json& metrics, std::string_view end = {});

}  // namespace bert_qa
