// Computes exact match and F1. The results equal those of SQuAD's official scripts for v1.1 and
// v2.0.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/squad/squad_dataset.h"

namespace bert_qa {

// Returns the text in lower case, without ASCII punctuation and without the words a, an and the.
// White space is collapsed.
std::string normalize_answer(std::string_view text);
bool is_exact_match(std::string_view prediction, std::string_view gold);
// Returns F1 of the normalised texts as bags of words, in the range 0 to 1.
double f1_score(std::string_view prediction, std::string_view gold);

// The percentages over `total` questions.
struct QaScore {
  double exact_match = 0.0;
  double f1 = 0.0;
  int64_t total = 0;
};

// Returns the scores of v1.1. The score of a question is the best over its gold answers.
// Requires: there is one prediction for each question, in the order of the data set; every question
//   has an answer.
QaScore score_v1(const QaDataset& dataset, std::span<const std::string> predictions);

// The scores of v2.0.
struct QaScoreV2 {
  QaScore all;
  std::optional<QaScore> has_answer;  // empty if no question has an answer
  std::optional<QaScore> no_answer;
  // The best percentages that any threshold of the null score reaches, and that threshold. If the
  // null score is above the threshold, the answer is "".
  double best_exact = 0.0, best_exact_threshold = 0.0;
  double best_f1 = 0.0, best_f1_threshold = 0.0;
};

// Returns the scores of v2.0. If a question has no answer, an empty prediction is right.
// Requires: there is one prediction and one null score (null_score_diff of the decoding) for each
//   question, in the order of the data set. Like the official script, the search for a threshold
//   does not change the texts. So predictions for it should be decoded without a threshold.
QaScoreV2 score_v2(const QaDataset& dataset, std::span<const std::string> predictions,
                   std::span<const float> null_scores);

// Return the scores with the names of the official scripts: exact_match and f1 for v1.1; exact, f1,
// total, HasAns_exact, …, best_f1_thresh for v2.0.
nlohmann::ordered_json metrics_json(const QaScore& score);
nlohmann::ordered_json metrics_json(const QaScoreV2& score);

}  // namespace bert_qa
