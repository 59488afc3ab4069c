#include "bert_qa/nq/nq_decoding.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

// Returns the positions of the n highest logits of a window without [CLS]. If logits are equal, the
// earlier position has priority.
std::vector<int64_t> best_positions(const std::vector<float>& logits, int64_t length, int64_t n) {
  std::vector<int64_t> positions(length - 1);
  std::iota(positions.begin(), positions.end(), 1);
  const int64_t kept = std::min(n, length - 1);
  std::partial_sort(
      positions.begin(), positions.begin() + kept, positions.end(),
      [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  positions.resize(kept);
  return positions;
}

// A span of a window, with the document's words at its ends.
struct ScoredSpan {
  double score = 0;
  int64_t window = 0;
  int64_t first_word = 0, end_word = 0;
};

// Replaces `best` if the window has a span with a higher score.
void find_best(const NqFeatures& features, int64_t window, const WindowLogits& logits,
               const NqDecodingOptions& options, std::optional<ScoredSpan>& best) {
  const int64_t length = features.window_length(window);
  const double empty = double{logits.start[0]} + double{logits.end[0]};
  const std::vector<int64_t> ends = best_positions(logits.end, length, options.n_best_size);
  for (const int64_t start : best_positions(logits.start, length, options.n_best_size)) {
    const int64_t first_word = features.word_at(window, start);
    if (first_word < 0) continue;
    for (const int64_t end : ends) {
      if (end < start || end - start >= options.max_answer_length) continue;
      const int64_t last_word = features.word_at(window, end);
      const double score = double{logits.start[start]} + double{logits.end[end]} - empty;
      if (last_word < 0 || (best && best->score >= score)) continue;
      best = {
          .score = score, .window = window, .first_word = first_word, .end_word = last_word + 1};
    }
  }
}

YesNo yes_no_of_types(const std::vector<float>& types) {
  if (types.empty()) return YesNo::kNone;
  const auto best = static_cast<AnswerType>(std::ranges::max_element(types) - types.begin());
  return best == AnswerType::kYes  ? YesNo::kYes
         : best == AnswerType::kNo ? YesNo::kNo
                                   : YesNo::kNone;
}

NqPrediction predict(const NqQuestion& question, const std::optional<ScoredSpan>& best,
                     std::span<const WindowLogits> logits) {
  NqPrediction prediction{.example_id = question.example_id};
  if (!best) return prediction;
  prediction.long_score = prediction.short_score = best->score;
  const auto found = std::ranges::find_if(question.candidates, [&](const NqSpan& candidate) {
    return candidate.start_token <= best->first_word && candidate.end_token >= best->end_word;
  });
  if (found != question.candidates.end()) {
    prediction.long_answer = {.start_token = found->start_token, .end_token = found->end_token};
  }
  prediction.yes_no = yes_no_of_types(logits[best->window].types);
  if (prediction.yes_no == YesNo::kNone) {
    prediction.short_answers = {{.start_token = best->first_word, .end_token = best->end_word}};
  }
  return prediction;
}

void check(std::span<const NqQuestion> questions, const NqFeatures& features,
           std::span<const WindowLogits> logits) {
  if (std::ssize(logits) != features.window_count() ||
      std::ssize(questions) != features.question_count()) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format(
             "got logits of {} windows and {} questions, expected {} windows and {} questions",
             logits.size(), questions.size(), features.window_count(), features.question_count()),
         .hint = "pass the logits of all windows, and the questions of the features"});
  }
  const auto is_nan = [](float logit) { return std::isnan(logit); };
  for (int64_t i = 0; i < std::ssize(logits); ++i) {
    for (const std::vector<float>* each : {&logits[i].start, &logits[i].end, &logits[i].types}) {
      if (std::ranges::none_of(*each, is_nan)) continue;
      throw fsdp::InvalidArgument(
          {.what = fmt::format("window {} has a logit that is not a number", i),
           .hint = "check that the model's weights and inputs are finite"});
    }
    const int64_t length = features.window_length(i);
    if (std::ssize(logits[i].start) >= length && std::ssize(logits[i].end) >= length) continue;
    throw fsdp::InvalidArgument(
        {.what = fmt::format("window {} has {} start and {} end logits for {} tokens", i,
                             logits[i].start.size(), logits[i].end.size(), length),
         .hint = "pass one start logit and one end logit per token"});
  }
}

ordered_json json_of(const NqSpan& span) {
  return {{"start_byte", span.start_byte},
          {"end_byte", span.end_byte},
          {"start_token", span.start_token},
          {"end_token", span.end_token}};
}

}  // namespace

NqQuestion question_of(const NqRecord& record) {
  NqQuestion question{.example_id = record.example_id,
                      .question = record.question,
                      .candidates = {},
                      .annotations = record.annotations};
  for (const NqCandidate& candidate : record.candidates) {
    if (candidate.top_level) question.candidates.push_back(candidate.span);
  }
  return question;
}

std::vector<NqPrediction> decode_nq(std::span<const NqQuestion> questions,
                                    const NqFeatures& features,
                                    std::span<const WindowLogits> logits,
                                    const NqDecodingOptions& options) {
  check(questions, features, logits);
  std::vector<NqPrediction> predictions;
  for (int64_t i = 0; i < std::ssize(questions); ++i) {
    std::optional<ScoredSpan> best;
    for (int64_t window = features.first_window(i); window < features.first_window(i + 1);
         ++window) {
      find_best(features, window, logits[window], options, best);
    }
    predictions.push_back(predict(questions[i], best, logits));
  }
  return predictions;
}

ordered_json nq_predictions_json(std::span<const NqPrediction> predictions) {
  ordered_json list = ordered_json::array();
  for (const NqPrediction& each : predictions) {
    ordered_json parts = ordered_json::array();
    for (const NqSpan& part : each.short_answers) parts.push_back(json_of(part));
    list.push_back({{"example_id", each.example_id},
                    {"long_answer", json_of(each.long_answer)},
                    {"long_answer_score", each.long_score},
                    {"short_answers", std::move(parts)},
                    {"short_answers_score", each.short_score},
                    {"yes_no_answer", name_of(each.yes_no)}});
  }
  return {{"predictions", std::move(list)}};
}

}  // namespace bert_qa
