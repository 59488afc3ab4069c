// Answering questions with all ranks: each runs its share of the windows, rank 0 decodes.
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

struct Answered {
  std::vector<DecodedAnswer> answers;  // rank 0; empty on the others
  double seconds = 0;
};

// Collective. Leaves the model in evaluation mode. Shows on the console how far it is.
Answered answer(fsdp::Unit<bert::QuestionAnswering> model, const fsdp::Engine& engine,
                const Questions& questions, const AnswerSettings& settings,
                terminal::Console& console);

// exact_match, f1 and, for v2, the rest of the official script's names.
nlohmann::ordered_json score(const Questions& questions, const Answered& answered,
                             const AnswerSettings& settings);

// Writes predictions.json, nbest_predictions.json and, for v2, null_odds.json.
void write_answers(const Answered& answered, const AnswerSettings& settings,
                   const std::filesystem::path& folder);

// A few of them in plain words, right and wrong ones; each on lines of its own, whatever they hold.
std::string some_answers(const Questions& questions, const Answered& answered);

}  // namespace bert_qa
