#include "bert_qa/squad/qa_decoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "bert_qa/text/unicode_text.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

// A possible answer: a span of tokens within one window.
struct Candidate {
  TokenSpan span;  // code points of the context; (0, 0) for the empty answer
  float score = 0.0F;
  float start_logit = 0.0F;
  float end_logit = 0.0F;
};

// Returns the positions of the n largest logits, largest first.
std::vector<int64_t> largest(const std::vector<float>& logits, int64_t n) {
  std::vector<int64_t> positions(logits.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto count = std::min<int64_t>(n, static_cast<int64_t>(positions.size()));
  std::partial_sort(
      positions.begin(), positions.begin() + count, positions.end(),
      [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a > b; });
  positions.resize(count);
  return positions;
}

void add_candidates(const QaFeatures& features, int64_t window, const WindowLogits& logits,
                    const DecodingOptions& options, std::vector<Candidate>& candidates) {
  const std::vector<int64_t> ends = largest(logits.end, options.n_best_size);
  for (const int64_t start : largest(logits.start, options.n_best_size)) {
    const std::optional<TokenSpan> first = features.context_span(window, start);
    if (!first) continue;
    // A context span exists only for context tokens, so answers cannot begin in the question.
    for (const int64_t end : ends) {
      const std::optional<TokenSpan> last = features.context_span(window, end);
      if (!last || end < start || end - start + 1 > options.max_answer_length) continue;
      candidates.push_back({.span = {first->begin, last->end},
                            .score = logits.start[start] + logits.end[end],
                            .start_logit = logits.start[start],
                            .end_logit = logits.end[end]});
    }
  }
}

// Sets the probabilities to the softmax of the scores.
void set_probabilities(const std::vector<float>& scores, std::vector<AnswerCandidate>& n_best) {
  const float highest = *std::max_element(scores.begin(), scores.end());  // avoids overflow of exp
  float sum = 0.0F;
  for (size_t i = 0; i < scores.size(); ++i) {
    n_best[i].probability = std::exp(scores[i] - highest);
    sum += n_best[i].probability;
  }
  for (AnswerCandidate& candidate : n_best) candidate.probability /= sum;
}

// A decoder for one question. It collects the candidates of all windows of the question and then
// chooses one.
class QuestionDecoder {
 public:
  QuestionDecoder(const std::string& context, const DecodingOptions& options)
      : context_(context), options_(options) {}

  void add(const QaFeatures& features, int64_t window, const WindowLogits& logits) {
    // [CLS] at position 0 stands for the empty answer. Its score is the lowest score over the
    // windows, because an answer in one window is enough.
    const float score = logits.start[0] + logits.end[0];
    if (!null_ || null_->score > score) {
      null_ = Candidate{{0, 0}, score, logits.start[0], logits.end[0]};
    }
    add_candidates(features, window, logits, options_, candidates_);
  }

  DecodedAnswer decode(const std::string& id) {
    keep_best();
    DecodedAnswer answer{.id = id};
    std::vector<float> scores;
    for (const Candidate& candidate : candidates_) {
      const auto text = code_point_slice(context_, candidate.span.begin, candidate.span.end);
      answer.n_best.push_back({.text = std::string(text),
                               .start_logit = candidate.start_logit,
                               .end_logit = candidate.end_logit});
      scores.push_back(candidate.score);
    }
    if (answer.n_best.empty() || (answer.n_best.size() == 1 && answer.n_best[0].text.empty())) {
      // The original also adds this entry, so that softmax and n_best are never empty.
      answer.n_best.insert(answer.n_best.begin(), {.text = "empty"});
      scores.insert(scores.begin(), 0.0F);
    }
    set_probabilities(scores, answer.n_best);
    choose(answer);
    return answer;
  }

 private:
  // Keeps the n best candidates. With version_2_with_negative it always keeps the empty answer,
  // because choose() needs its score.
  void keep_best() {
    if (options_.version_2_with_negative) candidates_.push_back(*null_);
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    const auto is_empty = [](const Candidate& c) { return c.span == TokenSpan{}; };
    if (static_cast<int64_t>(candidates_.size()) <= options_.n_best_size) return;
    candidates_.resize(options_.n_best_size);
    if (options_.version_2_with_negative &&
        std::none_of(candidates_.begin(), candidates_.end(), is_empty)) {
      candidates_.push_back(*null_);
    }
  }

  void choose(DecodedAnswer& answer) const {
    const auto best = std::find_if(answer.n_best.begin(), answer.n_best.end(),
                                   [](const AnswerCandidate& c) { return !c.text.empty(); });
    if (!options_.version_2_with_negative || best == answer.n_best.end()) {
      answer.text = answer.n_best.front().text;
      return;
    }
    answer.null_score_diff = null_->score - best->start_logit - best->end_logit;
    if (answer.null_score_diff <= options_.null_score_diff_threshold) answer.text = best->text;
  }

  const std::string& context_;
  const DecodingOptions& options_;
  std::optional<Candidate> null_;  // empty answer with the lowest score over all windows
  std::vector<Candidate> candidates_;
};

void check_logits(const QaDataset& dataset, const QaFeatures& features,
                  std::span<const WindowLogits> logits) {
  const auto windows = static_cast<int64_t>(logits.size());
  const auto questions = static_cast<int64_t>(dataset.questions.size());
  if (windows != features.window_count() || questions != features.question_count()) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format(
             "got logits of {} windows and {} questions, expected {} windows and {} questions",
             windows, questions, features.window_count(), features.question_count()),
         .hint =
             "pass the logits of all windows, and the dataset from which the features were made"});
  }
  for (int64_t i = 0; i < windows; ++i) {
    const size_t length = features.window_length(i);
    const auto is_nan = [](float logit) { return std::isnan(logit); };
    if (std::any_of(logits[i].start.begin(), logits[i].start.end(), is_nan) ||
        std::any_of(logits[i].end.begin(), logits[i].end.end(), is_nan)) {
      throw fsdp::InvalidArgument(
          {.what = fmt::format("window {} has a logit that is not a number", i),
           .hint = "check that the model's weights and inputs are finite"});
    }
    if (logits[i].start.size() >= length && logits[i].end.size() >= length) continue;
    throw fsdp::InvalidArgument(
        {.what = fmt::format("window {} has {} start and {} end logits for {} tokens", i,
                             logits[i].start.size(), logits[i].end.size(), length),
         .hint = "pass one start logit and one end logit per token"});
  }
}

// Returns an object with one member for each answer. Members are appended, because operator[] of an
// ordered object searches linearly.
template <typename Value>
ordered_json object_of(std::span<const DecodedAnswer> answers, Value value_of) {
  ordered_json object = ordered_json::object();
  auto& members = object.get_ref<ordered_json::object_t&>();
  for (const DecodedAnswer& answer : answers) members.push_back({answer.id, value_of(answer)});
  return object;
}

}  // namespace

std::vector<DecodedAnswer> decode_answers(const QaDataset& dataset, const QaFeatures& features,
                                          std::span<const WindowLogits> logits,
                                          const DecodingOptions& options) {
  check_logits(dataset, features, logits);
  std::vector<DecodedAnswer> answers;
  answers.reserve(dataset.questions.size());
  for (size_t i = 0; i < dataset.questions.size(); ++i) {
    const QaQuestion& question = dataset.questions[i];
    QuestionDecoder decoder(dataset.context_of(question), options);
    for (int64_t window = features.first_window(i); window < features.first_window(i + 1);
         ++window) {
      decoder.add(features, window, logits[window]);
    }
    answers.push_back(decoder.decode(question.id));
  }
  return answers;
}

ordered_json predictions_json(std::span<const DecodedAnswer> answers) {
  return object_of(answers, [](const DecodedAnswer& answer) { return answer.text; });
}

ordered_json n_best_json(std::span<const DecodedAnswer> answers) {
  return object_of(answers, [](const DecodedAnswer& answer) {
    ordered_json list = ordered_json::array();
    for (const AnswerCandidate& candidate : answer.n_best) {
      list.push_back({{"start_logit", candidate.start_logit},
                      {"end_logit", candidate.end_logit},
                      {"text", candidate.text},
                      {"probability", candidate.probability}});
    }
    return list;
  });
}

ordered_json null_odds_json(std::span<const DecodedAnswer> answers) {
  return object_of(answers, [](const DecodedAnswer& answer) { return answer.null_score_diff; });
}

}  // namespace bert_qa
