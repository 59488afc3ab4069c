// Answers questions on all ranks. Each rank runs its share of the windows, and rank 0 decodes the
// results.
#pragma once

#include <fsdp/engine.h>

#include <filesystem>
#include <nlohmann/json.hpp>
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

// Answers all questions and shows progress on the console. Collective. Afterwards the model is in
// evaluation mode.
Answered answer(fsdp::Unit<bert::QuestionAnswering> model, const fsdp::Engine& engine,
                const Questions& questions, const AnswerSettings& settings,
                terminal::Console& console);

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
