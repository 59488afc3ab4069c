// From start and end logits to answers in words: Hugging Face's postprocess_qa_predictions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bert_qa/squad/qa_features.h"
#include "bert_qa/squad/squad_dataset.h"

namespace bert_qa {

struct DecodingOptions {
  int64_t n_best_size = 20;
  int64_t max_answer_length = 30;  // tokens
  // An empty answer is allowed, and given where its score exceeds the best other's by more than
  // null_score_diff_threshold.
  bool version_2_with_negative = false;
  double null_score_diff_threshold = 0.0;
};

// One logit a token of the window; further ones belong to padding and are never part of an answer,
// but take part in the choice of the n best positions.
struct WindowLogits {
  std::vector<float> start;
  std::vector<float> end;
};

struct AnswerCandidate {
  std::string text;
  float probability = 0.0F;
  float start_logit = 0.0F;
  float end_logit = 0.0F;
};

struct DecodedAnswer {
  std::string id;
  std::string text;                     // "" only with version_2_with_negative
  std::vector<AnswerCandidate> n_best;  // by falling score
  // With version_2_with_negative: the empty answer's score less that of the best other one.
  float null_score_diff = 0.0F;
};

// One answer a question, in the data set's order. Positions of equal logits: the later one first.
// Requires: `features` was made from `dataset`; `logits` holds one entry a window of it.
// Errors: InvalidArgument if the counts differ, or a window has fewer logits than tokens or a NaN.
std::vector<DecodedAnswer> decode_answers(const QaDataset& dataset, const QaFeatures& features,
                                          std::span<const WindowLogits> logits,
                                          const DecodingOptions& options = {});

// The contents of predictions.json {id: text}, nbest_predictions.json {id: [{start_logit,
// end_logit, text, probability}]} and null_odds.json {id: null_score_diff}.
nlohmann::ordered_json predictions_json(std::span<const DecodedAnswer> answers);
nlohmann::ordered_json n_best_json(std::span<const DecodedAnswer> answers);
nlohmann::ordered_json null_odds_json(std::span<const DecodedAnswer> answers);

}  // namespace bert_qa
