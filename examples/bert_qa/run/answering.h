// Answers questions on all ranks. Each rank runs its share of the windows, and rank 0 decodes the
// results.
#pragma once

#include <fsdp/engine.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/questions.h"
#include "bert_qa/run/settings.h"
#include "bert_qa/squad/qa_decoding.h"
#include "models/bert/bert_model.h"
#include "terminal/console.h"

namespace bert_qa {

// The answers to all questions.
struct Answered {
  std::vector<DecodedAnswer> answers;  // on rank 0; empty on the others
  double seconds = 0;
};

// The surroundings of an evaluation.
struct Evaluation {
  terminal::Console& console;  // shows the progress
  // Returns true if the evaluation must stop. Called on all ranks before each round.
  std::function<bool()> must_stop = [] { return false; };
};

// Answers all questions. Returns nothing if it had to stop. Collective. Afterwards the model is in
// evaluation mode.
std::optional<Answered> answer(fsdp::Unit<bert::QuestionAnswering> model,
                               const fsdp::Engine& engine, const Questions& questions,
                               const AnswerSettings& settings, const Evaluation& evaluation);

// Returns exact_match and f1. For v2 it also returns the other metrics, with the names of the
// official script.
nlohmann::ordered_json score(const Questions& questions, const Answered& answered,
                             const AnswerSettings& settings);

// Writes predictions.json, nbest_predictions.json and, for v2, null_odds.json.
void write_answers(const Answered& answered, const AnswerSettings& settings,
                   const std::filesystem::path& folder);

// Returns some questions and answers as text for the user. Line breaks in them are escaped.
std::string some_answers(const Questions& questions, const Answered& answered);

}  // namespace bert_qa
