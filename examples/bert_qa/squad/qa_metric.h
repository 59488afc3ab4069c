// Computes exact match and F1 as SQuAD's official scripts for v1.1 and v2.0.
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

// Returns the text in lower case, without ASCII punctuation and the words a, an and the, and with
// white space collapsed.
std::string normalize_answer(std::string_view text);
bool is_exact_match(std::string_view prediction, std::string_view gold);
// Returns F1 of the bags of words of the normalised texts, 0 to 1.
double f1_score(std::string_view prediction, std::string_view gold);

// Percentages over `total` questions.
struct QaScore {
  double exact_match = 0.0;
  double f1 = 0.0;
  int64_t total = 0;
};

// Returns the scores of v1.1: each question counts the best score over its gold answers.
// Requires: one prediction for each question, in the data set's order; every question has an
// answer.
QaScore score_v1(const QaDataset& dataset, std::span<const std::string> predictions);

// The scores of v2.0.
struct QaScoreV2 {
  QaScore all;
  std::optional<QaScore> has_answer;  // empty if there is no such question
  std::optional<QaScore> no_answer;
  // The best percentages that a threshold of the null score reaches, with "" as the answer above
  // it; and that threshold.
  double best_exact = 0.0, best_exact_threshold = 0.0;
  double best_f1 = 0.0, best_f1_threshold = 0.0;
};

// Returns the scores of v2.0: for a question without an answer an empty prediction is right.
// Requires: one prediction and one null score (null_score_diff of the decoding) for each question,
// in the data set's order. As in the official script, the sweep over thresholds uses the texts
// unchanged, so predictions for it should be decoded without a threshold.
QaScoreV2 score_v2(const QaDataset& dataset, std::span<const std::string> predictions,
                   std::span<const float> null_scores);

// Return the scores by the names of the official scripts: exact_match and f1; for v2.0 exact, f1,
// total, HasAns_exact, …, best_f1_thresh.
nlohmann::ordered_json metrics_json(const QaScore& score);
nlohmann::ordered_json metrics_json(const QaScoreV2& score);

}  // namespace bert_qa
