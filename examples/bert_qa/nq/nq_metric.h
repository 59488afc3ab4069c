// Scores answers of Natural Questions. The results equal those of the official script, nq_eval.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>

#include "bert_qa/nq/nq_decoding.h"

namespace bert_qa {

// The numbers of annotators who must have an answer, so that the question has one. As in nq_eval,
// they do not depend on the number of annotators: with the default, a question with one annotation
// has no answer.
struct NqThresholds {
  int64_t long_non_null = 2;
  int64_t short_non_null = 2;
};

// Fractions from 0 to 1. A fraction of nothing is 0.
struct NqF1 {
  double f1 = 0, precision = 0, recall = 0;
};

// The scores of one kind of answer.
struct NqScore {
  NqF1 all;  // of all predictions
  // The best F1 that a threshold reaches, if predictions with a lower score count as no answer, and
  // that threshold.
  NqF1 best;
  double best_threshold = 0;
  // The highest recall at which a threshold reaches a precision, with its precision and threshold.
  struct AtPrecision {
    double target = 0;
    double recall = 0, precision = 0;
    std::optional<double> threshold;  // empty if no threshold reaches the target
  };
  std::array<AtPrecision, 3> at_precision;  // 0.5, 0.75 and 0.9
};

struct NqScores {
  int64_t questions = 0;
  NqScore long_answers, short_answers;
};

// Returns the scores. An answer is right if it equals the answer of any annotator. Spans are equal
// if their bytes or their tokens are; a short answer consists of all its spans, or is yes or no.
// Requires: there is one prediction for each question, in the same order.
NqScores score_nq(std::span<const NqQuestion> questions, std::span<const NqPrediction> predictions,
                  const NqThresholds& thresholds = {});

// Returns the scores with the names of nq_eval: long-best-threshold-f1, …,
// short-precision-at-precision>=0.9, and those of its table without thresholds: long-answer-f1, ….
nlohmann::ordered_json nq_metrics_json(const NqScores& scores);

}  // namespace bert_qa
