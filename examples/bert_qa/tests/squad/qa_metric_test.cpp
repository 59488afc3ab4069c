#include "bert_qa/squad/qa_metric.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "bert_qa/tests/support/qa_cases.h"
#include "bert_qa/tests/support/records.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using nlohmann::json;

QaDataset gold(std::vector<std::vector<std::string>> answers) {
  QaDataset dataset{.contexts = {""}};
  for (size_t i = 0; i < answers.size(); ++i) {
    QaQuestion question{.id = std::to_string(i)};
    for (const std::string& text : answers[i]) question.answers.push_back({text, 0});
    dataset.questions.push_back(std::move(question));
  }
  return dataset;
}

TEST_CASE("answers are normalised as by the official script") {
  const json recorded = json::parse(fsdp::read_text(record_file("qa.json")));
  for (const json& pair : recorded.at("normalized")) {
    CHECK(normalize_answer(pair[0].get<std::string>()) == pair[1].get<std::string>());
  }
}

TEST_CASE("F1 counts words as often as both texts have them") {
  CHECK(f1_score("the cat sat", "cat") == doctest::Approx(2.0 / 3.0));
  CHECK(f1_score("b b c", "b c c") == doctest::Approx(2.0 / 3.0));
  CHECK(f1_score("x", "y") == 0.0);
  CHECK(f1_score("", "") == 0.0);
  CHECK(is_exact_match("The Cat!", "cat"));
  CHECK(!is_exact_match("cats", "cat"));
}

TEST_CASE("v1.1 takes the best gold answer of each question") {
  const QaDataset dataset = gold({{"x", "a cat"}, {"dog"}});
  const std::vector<std::string> predictions = {"cat", "big dog"};
  const QaScore score = score_v1(dataset, predictions);
  CHECK(score.exact_match == doctest::Approx(50.0));
  CHECK(score.f1 == doctest::Approx(100.0 * (1.0 + 2.0 / 3.0) / 2.0));
  CHECK(score.total == 2);
  CHECK(metrics_json(QaScore{50.0, 75.0, 2}).dump() == R"({"exact_match":50.0,"f1":75.0})");
}

TEST_CASE("v2.0 rewards an empty prediction where there is no answer") {
  const QaDataset dataset = gold({{"cat"}, {}, {}, {"dog"}});
  const std::vector<std::string> predictions = {"cat", "", "bird", ""};
  const std::vector<float> null_scores = {-5.0F, 3.0F, 1.0F, 2.0F};
  const QaScoreV2 score = score_v2(dataset, predictions, null_scores);
  CHECK(score.all.exact_match == doctest::Approx(50.0));
  CHECK(score.has_answer->exact_match == doctest::Approx(50.0));
  CHECK(score.no_answer->f1 == doctest::Approx(50.0));
  // If only the first question is answered, 3 of 4 are right.
  CHECK(score.best_exact == doctest::Approx(75.0));
  CHECK(score.best_exact_threshold == -5.0);
  CHECK(metrics_json(score).contains("NoAns_f1"));
}

TEST_CASE("scores of the recorded predictions are those of the record") {
  const json recorded = json::parse(fsdp::read_text(record_file("qa.json")));
  for (const bool version_2 : {false, true}) {
    const json& expected = recorded.at(version_2 ? "v2" : "v1");
    const QaDataset dataset = recorded_questions("xquad-en-dev.json", version_2);
    std::vector<std::string> predictions;
    std::vector<float> null_scores;
    for (const QaQuestion& question : dataset.questions) {
      predictions.push_back(expected.at("predictions").at(question.id));
      if (version_2) null_scores.push_back(expected.at("null_odds").at(question.id));
    }
    const json ours = version_2 ? json(metrics_json(score_v2(dataset, predictions, null_scores)))
                                : json(metrics_json(score_v1(dataset, predictions)));
    CHECK(ours.size() == expected.at("metrics").size());
    for (const auto& [name, value] : expected.at("metrics").items()) {
      CAPTURE(name);
      CHECK(ours.at(name).get<double>() == doctest::Approx(value.get<double>()).epsilon(1e-12));
    }
  }
}

TEST_CASE("predictions that do not fit the questions are refused") {
  const QaDataset dataset = gold({{"cat"}, {}});
  const std::vector<std::string> one = {"cat"};
  const std::vector<std::string> two = {"cat", ""};
  CHECK_THROWS_WITH_AS(score_v1(dataset, one),
                       "got 1 predictions for 2 questions; hint: pass one value per question, in "
                       "the order of the dataset",
                       fsdp::InvalidArgument);
  CHECK_THROWS_WITH_AS(score_v1(dataset, two),
                       "a question without an answer cannot be scored as SQuAD v1.1 (question 1); "
                       "hint: use --version-2-with-negative",
                       fsdp::InvalidArgument);
  CHECK_THROWS_WITH_AS(score_v2(dataset, two, {}),
                       "got 0 null scores for 2 questions; hint: pass one value per question, in "
                       "the order of the dataset",
                       fsdp::InvalidArgument);
}

}  // namespace
}  // namespace bert_qa
