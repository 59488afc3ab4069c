// Compares with the figures of PyPI's natural-questions, which record_nq_eval.py writes.
#include "bert_qa/nq/nq_metric.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "bert_qa/nq/nq_reader.h"
#include "bert_qa/tests/support/records.h"

namespace bert_qa {
namespace {

using nlohmann::json;

NqSpan span_of(const json& span) {
  return {.start_byte = span.at("start_byte"),
          .end_byte = span.at("end_byte"),
          .start_token = span.at("start_token"),
          .end_token = span.at("end_token")};
}

NqPrediction prediction_of(const json& each) {
  NqPrediction prediction{.example_id = each.at("example_id"),
                          .long_answer = span_of(each.at("long_answer")),
                          .long_score = each.at("long_answer_score"),
                          .short_answers = {},
                          .short_score = each.at("short_answers_score"),
                          .yes_no = yes_no_of(each.at("yes_no_answer").get<std::string>()).value()};
  for (const json& part : each.at("short_answers")) {
    prediction.short_answers.push_back(span_of(part));
  }
  return prediction;
}

std::vector<NqQuestion> gold_questions() {
  NqReader reader(record_file("nq_eval/gold.jsonl"), {});
  std::vector<NqQuestion> questions;
  for (NqRecord record; reader.next(record);) questions.push_back(question_of(record));
  return questions;
}

TEST_CASE("all figures of Natural Questions equal those of nq_eval, for one to five annotators") {
  const std::vector<NqQuestion> questions = gold_questions();
  REQUIRE(questions.size() == 30);
  const json sets = json::parse(fsdp::read_text(record_file("nq_eval/figures.json")));
  size_t compared = 0;
  for (const json& set : sets) {
    CAPTURE(set.at("name").get<std::string>());
    std::vector<NqPrediction> predictions;
    for (const json& each : set.at("predictions")) predictions.push_back(prediction_of(each));
    for (size_t i = 0; i < questions.size(); ++i) {
      REQUIRE(questions[i].example_id == predictions[i].example_id);
    }
    for (const json& result : set.at("results")) {
      CAPTURE(result.at("thresholds").dump());
      const NqScores scores = score_nq(questions, predictions,
                                       {.long_non_null = result.at("thresholds")[0],
                                        .short_non_null = result.at("thresholds")[1]});
      CHECK(scores.questions == 30);
      const json ours = nq_metrics_json(scores);
      const json& theirs = result.at("figures");
      CHECK(ours.size() == theirs.size());
      for (const auto& [name, value] : theirs.items()) {
        CAPTURE(name);
        CHECK(ours.at(name) == value);  // to the last bit
        ++compared;
      }
    }
  }
  CHECK(compared == 4 * 4 * 2 * 16);
}

}  // namespace
}  // namespace bert_qa
