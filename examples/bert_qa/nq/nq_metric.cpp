#include "bert_qa/nq/nq_metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bert_qa {
namespace {

constexpr std::array<double, 3> kTargets{0.5, 0.75, 0.9};

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

bool is_null_list(const std::vector<NqSpan>& spans) {
  return std::ranges::all_of(spans, &NqSpan::is_null);
}

// Requires: neither span is null.
bool are_equal(const NqSpan& a, const NqSpan& b) {
  const bool bytes =
      a.has_bytes() && b.has_bytes() && a.start_byte == b.start_byte && a.end_byte == b.end_byte;
  const bool tokens = a.has_tokens() && b.has_tokens() && a.start_token == b.start_token &&
                      a.end_token == b.end_token;
  return bytes || tokens;
}

// Returns true if each span of `a` that is not null equals a span of `b`.
bool is_covered(const std::vector<NqSpan>& a, const std::vector<NqSpan>& b) {
  return std::ranges::all_of(a, [&](const NqSpan& one) {
    return one.is_null() || std::ranges::any_of(b, [&](const NqSpan& other) {
             return !other.is_null() && are_equal(one, other);
           });
  });
}

// The result of one question.
struct Result {
  bool has_gold = false, has_prediction = false, is_right = false;
  double score = 0;
};

Result long_result(const NqQuestion& question, const NqPrediction& prediction, int64_t threshold) {
  const auto has_answer = [](const NqAnnotation& each) { return !each.long_answer.is_null(); };
  const auto& gold = question.annotations;
  Result result{.has_gold = std::ranges::count_if(gold, has_answer) >= threshold && !gold.empty(),
                .has_prediction = !prediction.long_answer.is_null(),
                .score = prediction.long_score};
  result.is_right =
      result.has_gold && result.has_prediction &&
      std::ranges::any_of(gold, [&](const NqAnnotation& each) {
        return has_answer(each) && are_equal(each.long_answer, prediction.long_answer);
      });
  return result;
}

Result short_result(const NqQuestion& question, const NqPrediction& prediction, int64_t threshold) {
  const auto has_answer = [](const NqAnnotation& each) {
    return !is_null_list(each.short_answers) || each.yes_no != YesNo::kNone;
  };
  const auto& gold = question.annotations;
  const bool is_yes_no = prediction.yes_no != YesNo::kNone;
  Result result{.has_gold = std::ranges::count_if(gold, has_answer) >= threshold && !gold.empty(),
                .has_prediction = is_yes_no || !is_null_list(prediction.short_answers),
                .score = prediction.short_score};
  const auto matches = [&](const NqAnnotation& each) {
    if (is_yes_no) return each.yes_no == prediction.yes_no;
    return is_covered(prediction.short_answers, each.short_answers) &&
           is_covered(each.short_answers, prediction.short_answers);
  };
  result.is_right = result.has_gold && result.has_prediction && std::ranges::any_of(gold, matches);
  return result;
}

NqF1 f1_of(int64_t right, int64_t predicted, int64_t gold) {
  NqF1 f1{.precision = ratio(static_cast<double>(right), static_cast<double>(predicted)),
          .recall = ratio(static_cast<double>(right), static_cast<double>(gold))};
  f1.f1 = ratio(2 * f1.precision * f1.recall, f1.precision + f1.recall);
  return f1;
}

NqScore score_of(std::vector<Result> results) {
  NqScore score;
  for (size_t t = 0; t < kTargets.size(); ++t) score.at_precision[t].target = kTargets[t];
  std::ranges::stable_sort(results, std::ranges::greater{}, &Result::score);
  const int64_t gold = std::ranges::count_if(results, &Result::has_gold);
  int64_t right = 0, predicted = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    right += results[i].is_right ? 1 : 0;
    predicted += results[i].has_prediction ? 1 : 0;
    score.all = f1_of(right, predicted, gold);
    // A threshold includes all predictions with its score.
    if (i + 1 < results.size() && results[i + 1].score == results[i].score) continue;
    if (score.all.f1 > score.best.f1) {
      score.best = score.all;
      score.best_threshold = results[i].score;
    }
    for (NqScore::AtPrecision& at : score.at_precision) {
      if (score.all.precision < at.target || score.all.recall <= at.recall) continue;
      at = {.target = at.target,
            .recall = score.all.recall,
            .precision = score.all.precision,
            .threshold = results[i].score};
    }
  }
  return score;
}

void add_scores(const std::string& kind, const NqScore& score, nlohmann::ordered_json& metrics) {
  metrics[kind + "-best-threshold-f1"] = score.best.f1;
  metrics[kind + "-best-threshold-precision"] = score.best.precision;
  metrics[kind + "-best-threshold-recall"] = score.best.recall;
  metrics[kind + "-best-threshold"] = score.best_threshold;
  for (const NqScore::AtPrecision& at : score.at_precision) {
    metrics[fmt::format("{}-recall-at-precision>={}", kind, at.target)] = at.recall;
    metrics[fmt::format("{}-precision-at-precision>={}", kind, at.target)] = at.precision;
    metrics[fmt::format("{}-threshold-at-precision>={}", kind, at.target)] =
        at.threshold ? nlohmann::ordered_json(*at.threshold) : nlohmann::ordered_json();
  }
  metrics[kind + "-answer-f1"] = score.all.f1;
  metrics[kind + "-answer-precision"] = score.all.precision;
  metrics[kind + "-answer-recall"] = score.all.recall;
}

}  // namespace

NqScores score_nq(std::span<const NqQuestion> questions, std::span<const NqPrediction> predictions,
                  const NqThresholds& thresholds) {
  std::vector<Result> long_results, short_results;
  for (size_t i = 0; i < questions.size(); ++i) {
    long_results.push_back(long_result(questions[i], predictions[i], thresholds.long_non_null));
    short_results.push_back(short_result(questions[i], predictions[i], thresholds.short_non_null));
  }
  return {.questions = std::ssize(questions),
          .long_answers = score_of(std::move(long_results)),
          .short_answers = score_of(std::move(short_results))};
}

nlohmann::ordered_json nq_metrics_json(const NqScores& scores) {
  nlohmann::ordered_json metrics;
  add_scores("long", scores.long_answers, metrics);
  add_scores("short", scores.short_answers, metrics);
  return metrics;
}

}  // namespace bert_qa
