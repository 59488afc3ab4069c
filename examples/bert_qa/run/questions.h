// The questions of a run: files read and cut into windows.
#pragma once

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/settings.h"
#include "bert_qa/squad/qa_features.h"
#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

struct Questions {
  QaDataset dataset;
  QaFeatures features;
};

struct QuestionSets {
  std::optional<Questions> train, validation;  // of the files that the settings name
  std::vector<std::string> notes;              // to be told once
};

// Errors: IoError and InvalidArgument naming the file and what is wrong with it.
QuestionSets read_questions(const Settings& settings, const WordPieceTokenizer& tokenizer);

// The same on a thread of its own, while a model is built; get() throws what reading threw.
// Requires: both outlive the future, whose destructor waits.
std::future<QuestionSets> read_questions_ahead(const Settings& settings,
                                               const WordPieceTokenizer& tokenizer);

}  // namespace bert_qa
