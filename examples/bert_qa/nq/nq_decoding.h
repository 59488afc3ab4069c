// Converts a model's logits to answers of Natural Questions, as the baseline does (nq_features.h).
//
// The best span of a question has the highest score: start logit + end logit - the logits of [CLS].
// The first top-level candidate that contains the span is the long answer, and the span is the
// short answer. There is one difference: if the answer type of the span's window is most likely
// kYes or kNo, this is the answer instead of the span. The baseline never answers yes or no.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "bert_qa/nq/nq_features.h"
#include "bert_qa/nq/nq_record.h"
#include "bert_qa/windows/window_logits.h"

namespace bert_qa {

struct NqDecodingOptions {
  int64_t n_best_size = 10;        // starts and ends of a window that are combined
  int64_t max_answer_length = 30;  // in tokens
};

// The parts of a record that are needed to decode and score its answer.
struct NqQuestion {
  int64_t example_id = 0;
  std::string question;
  std::vector<NqSpan> candidates;  // only top-level ones
  std::vector<NqAnnotation> annotations;
};

// Returns the parts of a record.
NqQuestion question_of(const NqRecord& record);

// The answer to a question, in tokens of the document. Spans are null if no span was allowed.
struct NqPrediction {
  int64_t example_id = 0;
  NqSpan long_answer;
  double long_score = 0;
  std::vector<NqSpan> short_answers;
  double short_score = 0;
  YesNo yes_no = YesNo::kNone;
};

// Returns one prediction for each question.
// Requires: `features` was made from the questions' records; `logits` has an entry for each of its
//   windows.
// Errors: InvalidArgument if the numbers of entries differ, if a window has fewer logits than
//   tokens, or if a logit is NaN.
std::vector<NqPrediction> decode_nq(std::span<const NqQuestion> questions,
                                    const NqFeatures& features,
                                    std::span<const WindowLogits> logits,
                                    const NqDecodingOptions& options = {});

// Returns the JSON that nq_eval reads: {"predictions": [{example_id, long_answer,
// long_answer_score, short_answers, short_answers_score, yes_no_answer}]}.
nlohmann::ordered_json nq_predictions_json(std::span<const NqPrediction> predictions);

}  // namespace bert_qa
