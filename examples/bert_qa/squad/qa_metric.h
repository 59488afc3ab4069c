// Exact match and F1 as SQuAD's official scripts compute them, v1.1 and v2.0.
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

// Lower case, without ASCII punctuation, without the words a, an and the, white space collapsed.
std::string normalize_answer(std::string_view text);
bool is_exact_match(std::string_view prediction, std::string_view gold);
// Of the bags of words of the normalised texts, 0..1.
double f1_score(std::string_view prediction, std::string_view gold);

// Percentages over `total` questions.
struct QaScore {
  double exact_match = 0.0;
  double f1 = 0.0;
  int64_t total = 0;
};

// v1.1: the best over the gold answers, each question counting once.
// Requires: one prediction a question, in the data set's order; every question has an answer.
QaScore score_v1(const QaDataset& dataset, std::span<const std::string> predictions);

struct QaScoreV2 {
  QaScore all;
  std::optional<QaScore> has_answer;  // empty where there is no such question
  std::optional<QaScore> no_answer;
  // The best percentages reachable by answering "" above a threshold of the null score, and that
  // threshold.
  double best_exact = 0.0, best_exact_threshold = 0.0;
  double best_f1 = 0.0, best_f1_threshold = 0.0;
};

// v2.0: a question without an answer is right if the prediction is empty.
// Requires: one prediction and one null score (null_score_diff of the decoding) a question, in the
// data set's order. As in the official script, the sweep takes the texts as they are: predictions
// for it are best made without a threshold of their own.
QaScoreV2 score_v2(const QaDataset& dataset, std::span<const std::string> predictions,
                   std::span<const float> null_scores);

// With the names of the official scripts: exact_match and f1; for v2.0 exact, f1, total,
// HasAns_exact, …, best_f1_thresh.
nlohmann::ordered_json metrics_json(const QaScore& score);
nlohmann::ordered_json metrics_json(const QaScoreV2& score);

}  // namespace bert_qa
