#include "bert_qa/squad/qa_metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>

#include "bert_qa/text/unicode_text.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

bool is_ascii_punctuation(char c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

// Replaces the regular expression \b(a|an|the)\b by a space, in lower-case text. A sequence of word
// characters is removed if it is an article; otherwise it is kept.
std::string without_articles(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size()) {
      const DecodedChar c = decode_utf8(text, end);
      if (!is_word_character(c.code_point)) break;
      end += c.byte_length;
    }
    const std::string_view word = text.substr(at, end - at);
    if (word == "a" || word == "an" || word == "the") {
      result += ' ';
    } else {
      result += word;
    }
    if (end < text.size()) {
      const int32_t length = decode_utf8(text, end).byte_length;
      result += text.substr(end, length);
      end += length;
    }
    at = end;
  }
  return result;
}

// Splits a text like Python's str.split().
std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text, at);
    if (is_python_space(c.code_point)) {
      if (at > begin) words.push_back(text.substr(begin, at - begin));
      begin = at + c.byte_length;
    }
    at += c.byte_length;
  }
  if (begin < text.size()) words.push_back(text.substr(begin));
  return words;
}

int64_t common_words(const std::vector<std::string_view>& a,
                     const std::vector<std::string_view>& b) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const std::string_view word : a) ++counts[word];
  return std::count_if(b.begin(), b.end(),
                       [&](std::string_view word) { return counts[word]-- > 0; });
}

double f1_of_words(const std::vector<std::string_view>& prediction,
                   const std::vector<std::string_view>& gold) {
  const auto common = static_cast<double>(common_words(prediction, gold));
  if (common == 0.0) return 0.0;
  const double precision = common / static_cast<double>(prediction.size());
  const double recall = common / static_cast<double>(gold.size());
  return 2.0 * precision * recall / (precision + recall);
}

// Returns F1 as v2.0 defines it. Two texts without words agree. A text with words and a text
// without words do not agree.
double f1_score_v2(std::string_view prediction, std::string_view gold) {
  const std::string ours = normalize_answer(prediction);
  const std::string theirs = normalize_answer(gold);
  if (ours.empty() || theirs.empty()) return ours == theirs ? 1.0 : 0.0;
  return f1_of_words(split_words(ours), split_words(theirs));
}

struct Sum {
  double exact = 0.0;
  double f1 = 0.0;
  int64_t total = 0;

  void add(double one_exact, double one_f1) {
    exact += one_exact;
    f1 += one_f1;
    ++total;
  }
  QaScore percent() const {
    const auto count = static_cast<double>(std::max<int64_t>(total, 1));
    return {100.0 * exact / count, 100.0 * f1 / count, total};
  }
  std::optional<QaScore> percent_if_any() const {
    return total > 0 ? std::optional(percent()) : std::nullopt;
  }
};

void check_count(const QaDataset& dataset, size_t count, const char* what) {
  if (count == dataset.questions.size()) return;
  throw fsdp::InvalidArgument(
      {.what = fmt::format("got {} {} for {} questions", count, what, dataset.questions.size()),
       .hint = "pass one value per question, in the order of the dataset"});
}

// Returns the gold answers with which the v2.0 script compares: those that have words, or "" if
// there are none.
std::vector<std::string> gold_answers_v2(const QaQuestion& question) {
  std::vector<std::string> gold;
  for (const QaAnswer& answer : question.answers) {
    if (!normalize_answer(answer.text).empty()) gold.push_back(answer.text);
  }
  if (gold.empty()) gold.emplace_back();
  return gold;
}

struct Best {
  double percent = 0.0;
  double threshold = 0.0;
};

// Implements the official find_best_thresh. It visits the questions in the order of rising null
// scores. A question with an answer adds its score. A question without an answer subtracts one if
// its prediction is not empty.
Best best_threshold(const QaDataset& dataset, std::span<const std::string> predictions,
                    std::span<const float> null_scores, const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return null_scores[a] < null_scores[b]; });
  // Below all null scores every answer is "": right exactly for questions without an answer.
  auto current = static_cast<double>(dataset.unanswerable_count());
  Best best{current, 0.0};
  for (const size_t i : order) {
    if (!dataset.questions[i].answers.empty()) {
      current += scores[i];
    } else if (!predictions[i].empty()) {
      current -= 1.0;
    }
    if (current > best.percent) best = {current, null_scores[i]};
  }
  best.percent *= 100.0 / static_cast<double>(std::max<size_t>(scores.size(), 1));
  return best;
}

}  // namespace

std::string normalize_answer(std::string_view text) {
  std::string lower = to_lower(text);
  std::erase_if(lower, is_ascii_punctuation);
  const std::string plain = without_articles(lower);
  std::string result;
  for (const std::string_view word : split_words(plain)) {
    if (!result.empty()) result += ' ';
    result += word;
  }
  return result;
}

bool is_exact_match(std::string_view prediction, std::string_view gold) {
  return normalize_answer(prediction) == normalize_answer(gold);
}

double f1_score(std::string_view prediction, std::string_view gold) {
  const std::string ours = normalize_answer(prediction);
  const std::string theirs = normalize_answer(gold);
  return f1_of_words(split_words(ours), split_words(theirs));
}

QaScore score_v1(const QaDataset& dataset, std::span<const std::string> predictions) {
  check_count(dataset, predictions.size(), "predictions");
  Sum sum;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const QaQuestion& question = dataset.questions[i];
    if (question.answers.empty()) {
      throw fsdp::InvalidArgument(
          {.what = "a question without an answer cannot be scored as SQuAD v1.1",
           .where = "question " + question.id,
           .hint = "use --version-2-with-negative"});
    }
    double exact = 0.0;
    double f1 = 0.0;
    for (const QaAnswer& answer : question.answers) {
      exact = std::max(exact, is_exact_match(predictions[i], answer.text) ? 1.0 : 0.0);
      f1 = std::max(f1, f1_score(predictions[i], answer.text));
    }
    sum.add(exact, f1);
  }
  return sum.percent();
}

QaScoreV2 score_v2(const QaDataset& dataset, std::span<const std::string> predictions,
                   std::span<const float> null_scores) {
  check_count(dataset, predictions.size(), "predictions");
  check_count(dataset, null_scores.size(), "null scores");
  Sum all;
  Sum has_answer;
  Sum no_answer;
  std::vector<double> exacts;
  std::vector<double> f1s;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const QaQuestion& question = dataset.questions[i];
    double exact = 0.0;
    double f1 = 0.0;
    for (const std::string& gold : gold_answers_v2(question)) {
      exact = std::max(exact, is_exact_match(predictions[i], gold) ? 1.0 : 0.0);
      f1 = std::max(f1, f1_score_v2(predictions[i], gold));
    }
    all.add(exact, f1);
    (question.answers.empty() ? no_answer : has_answer).add(exact, f1);
    exacts.push_back(exact);
    f1s.push_back(f1);
  }
  const Best exact = best_threshold(dataset, predictions, null_scores, exacts);
  const Best f1 = best_threshold(dataset, predictions, null_scores, f1s);
  return {.all = all.percent(),
          .has_answer = has_answer.percent_if_any(),
          .no_answer = no_answer.percent_if_any(),
          .best_exact = exact.percent,
          .best_exact_threshold = exact.threshold,
          .best_f1 = f1.percent,
          .best_f1_threshold = f1.threshold};
}

ordered_json metrics_json(const QaScore& score) {
  return {{"exact_match", score.exact_match}, {"f1", score.f1}};
}

ordered_json metrics_json(const QaScoreV2& score) {
  ordered_json json = {
      {"exact", score.all.exact_match}, {"f1", score.all.f1}, {"total", score.all.total}};
  const auto add = [&](const std::string& prefix, const std::optional<QaScore>& part) {
    if (!part) return;
    json[prefix + "_exact"] = part->exact_match;
    json[prefix + "_f1"] = part->f1;
    json[prefix + "_total"] = part->total;
  };
  add("HasAns", score.has_answer);
  add("NoAns", score.no_answer);
  json["best_exact"] = score.best_exact;
  json["best_exact_thresh"] = score.best_exact_threshold;
  json["best_f1"] = score.best_f1;
  json["best_f1_thresh"] = score.best_f1_threshold;
  return json;
}

}  // namespace bert_qa
