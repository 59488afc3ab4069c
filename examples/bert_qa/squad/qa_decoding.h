// Converts start and end logits to answer texts. The results equal those of Hugging Face's
// postprocess_qa_predictions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bert_qa/squad/qa_features.h"
#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/windows/window_logits.h"

namespace bert_qa {

// Options of decode_answers.
struct DecodingOptions {
  int64_t n_best_size = 20;
  int64_t max_answer_length = 30;  // in tokens
  // Allows an empty answer. It is chosen if its score exceeds the best score of all other answers
  // by more than null_score_diff_threshold.
  bool version_2_with_negative = false;
  double null_score_diff_threshold = 0.0;
};

// One of the n best answers of a question.
struct AnswerCandidate {
  std::string text;
  float probability = 0.0F;
  float start_logit = 0.0F;
  float end_logit = 0.0F;
};

// The answer of a question.
struct DecodedAnswer {
  std::string id;
  std::string text;                     // empty only with version_2_with_negative
  std::vector<AnswerCandidate> n_best;  // in the order of falling scores
  // The score of the empty answer minus the score of the best other answer. Only with
  // version_2_with_negative.
  float null_score_diff = 0.0F;
};

// Returns one answer for each question, in the order of the data set. If logits are equal, the
// later position has priority.
// Requires: `features` was made from `dataset`; `logits` has an entry for each of its windows.
// Errors: InvalidArgument if the numbers of entries differ, if a window has fewer logits than
//   tokens, or if a logit is NaN.
std::vector<DecodedAnswer> decode_answers(const QaDataset& dataset, const QaFeatures& features,
                                          std::span<const WindowLogits> logits,
                                          const DecodingOptions& options = {});

// Return the contents of predictions.json {id: text}, nbest_predictions.json {id: [{start_logit,
// end_logit, text, probability}]} and null_odds.json {id: null_score_diff}.
nlohmann::ordered_json predictions_json(std::span<const DecodedAnswer> answers);
nlohmann::ordered_json n_best_json(std::span<const DecodedAnswer> answers);
nlohmann::ordered_json null_odds_json(std::span<const DecodedAnswer> answers);

}  // namespace bert_qa
