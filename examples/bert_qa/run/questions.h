// Reads the questions of a run and cuts them into windows.
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

// The questions of one file, with their windows.
struct Questions {
  QaDataset dataset;
  QaFeatures features;
};

// The questions of a run's files.
struct QuestionSets {
  std::optional<Questions> train, validation;  // only for files that the settings name
  std::vector<std::string> notes;              // for the user
};

// Reads the files of the settings. Throws IoError or InvalidArgument; the message names the file
// and what is wrong with it.
QuestionSets read_questions(const Settings& settings, const WordPieceTokenizer& tokenizer);

// Starts read_questions in a new thread. get() of the future throws its exception.
// Requires: both arguments outlive the future. The future's destructor waits for the thread.
std::future<QuestionSets> read_questions_ahead(const Settings& settings,
                                               const WordPieceTokenizer& tokenizer);

}  // namespace bert_qa
