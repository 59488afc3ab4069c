// Answers questions on all ranks. Each rank runs its share of the windows, and rank 0 decodes the
// results.
#pragma once

#include <fsdp/engine.h>

#include <functional>
#include <memory>
#include <optional>

#include "bert_qa/run/questions.h"
#include "bert_qa/run/settings.h"
#include "models/bert/bert_model.h"
#include "terminal/console.h"

namespace bert_qa {

// The answers to all questions.
struct Answered {
  std::unique_ptr<Answers> answers;  // on rank 0; null on the others
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

}  // namespace bert_qa
