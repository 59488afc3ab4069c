#include "bert_qa/squad/qa_decoding.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "bert_qa/tests/support/qa_cases.h"
#include "bert_qa/tests/support/records.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using nlohmann::json;

struct Decoded {
  QaDataset dataset;
  std::vector<DecodedAnswer> answers;
};

Decoded decode_recorded(const json& expected, bool version_2) {
  Decoded result{.dataset = recorded_questions("xquad-en-dev.json", version_2)};
  const QaFeatures features(
      result.dataset, uncased_tokenizer(),
      {.max_seq_length = expected.at("max_seq_length"), .doc_stride = expected.at("doc_stride")});
  result.answers = decode_answers(result.dataset, features, recorded_logits(features),
                                  {.version_2_with_negative = version_2});
  return result;
}

void check_n_best(const json& ours, const json& theirs) {
  REQUIRE(ours.size() == theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    CHECK(ours[i].at("text") == theirs[i].at("text"));
    CHECK(ours[i].at("start_logit") == theirs[i].at("start_logit"));
    CHECK(ours[i].at("end_logit") == theirs[i].at("end_logit"));
    // exp() of two libraries differs by a few units in the last place of fp32.
    CHECK(ours[i].at("probability").get<double>() ==
          doctest::Approx(theirs[i].at("probability").get<double>()).epsilon(1e-5));
  }
}

// Returns a context of three tokens after [CLS] a [SEP].
QaDataset small() { return {.contexts = {"b é d"}, .questions = {{.id = "q1", .question = "a"}}}; }

TEST_CASE("answers, n-best lists and null odds are those of the record") {
  const json recorded = json::parse(fsdp::read_text(record_file("qa.json")));
  for (const bool version_2 : {false, true}) {
    CAPTURE(version_2);
    const json& expected = recorded.at(version_2 ? "v2" : "v1");
    const Decoded decoded = decode_recorded(expected, version_2);
    CHECK(json(predictions_json(decoded.answers)) == expected.at("predictions"));
    const json n_best = json(n_best_json(decoded.answers));
    CHECK(n_best.size() == decoded.answers.size());
    for (const auto& [id, list] : expected.at("nbest").items()) check_n_best(n_best.at(id), list);
    if (version_2) CHECK(json(null_odds_json(decoded.answers)) == expected.at("null_odds"));
  }
}

TEST_CASE("an answer lies in the context, ends after it starts, and is not too long") {
  const QaDataset dataset = small();
  const QaFeatures features(dataset, uncased_tokenizer());
  // The best start is in the question. The best end precedes the best start.
  const std::vector<WindowLogits> logits = {
      {.start = {0, 9, 9, 1, 3, 2, 9}, .end = {0, 9, 9, 5.5, 1, 4, 9}}};
  CHECK(decode_answers(dataset, features, logits)[0].text == "é d");
  CHECK(decode_answers(dataset, features, logits, {.max_answer_length = 1})[0].text == "b");
  // The only best end is in the question, so no candidate remains.
  const DecodedAnswer none = decode_answers(dataset, features, logits, {.n_best_size = 1})[0];
  CHECK(none.text == "empty");
  CHECK(none.n_best.size() == 1);
  CHECK(none.n_best[0].probability == 1.0F);
}

TEST_CASE("the empty answer wins above the threshold") {
  const QaDataset dataset = small();
  const QaFeatures features(dataset, uncased_tokenizer());
  const std::vector<WindowLogits> logits = {
      {.start = {4, 0, 0, 1, 3, 0, 0}, .end = {4, 0, 0, 0, 0, 2, 0}}};
  const auto text = [&](double threshold) {
    return decode_answers(
        dataset, features, logits,
        {.version_2_with_negative = true, .null_score_diff_threshold = threshold})[0];
  };
  CHECK(text(0.0).text.empty());
  CHECK(text(0.0).null_score_diff == 3.0F);
  CHECK(text(3.0).text == "é d");
  CHECK(decode_answers(dataset, features, logits)[0].text == "é d");
}

TEST_CASE("output keeps the order of the data set and the keys of the format") {
  const std::vector<DecodedAnswer> answers = {
      {.id = "z", .text = "b", .n_best = {{"b", 1.0F, 2.0F, 3.0F}}}, {.id = "a", .text = "\"c\""}};
  CHECK(predictions_json(answers).dump() == R"({"z":"b","a":"\"c\""})");
  CHECK(n_best_json(answers).dump() ==
        R"({"z":[{"start_logit":2.0,"end_logit":3.0,"text":"b","probability":1.0}],"a":[]})");
  CHECK(null_odds_json(answers).dump() == R"({"z":0.0,"a":0.0})");
  CHECK(predictions_json({}).dump() == "{}");
}

TEST_CASE("logits that do not fit the features, or are no numbers, are refused") {
  const QaDataset dataset = small();
  const QaFeatures features(dataset, uncased_tokenizer());
  const std::vector<float> seven(7, 0.0F);
  std::vector<float> broken = seven;
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  const auto decode = [&](std::vector<WindowLogits> logits) {
    decode_answers(dataset, features, logits);
  };
  CHECK_THROWS_WITH_AS(
      decode({}),
      "got logits of 0 windows and 1 questions, expected 1 windows and 1 questions; hint: pass the "
      "logits of all windows, and the dataset from which the features were made",
      fsdp::InvalidArgument);
  CHECK_THROWS_WITH_AS(
      decode({{.start = seven, .end = {1.0F}}}),
      "window 0 has 7 start and 1 end logits for 7 tokens; hint: pass one start logit "
      "and one end logit per token",
      fsdp::InvalidArgument);
  CHECK_THROWS_WITH_AS(decode({{.start = seven, .end = broken}}),
                       "window 0 has a logit that is not a number; hint: check that the model's "
                       "weights and inputs are finite",
                       fsdp::InvalidArgument);
}

}  // namespace
}  // namespace bert_qa
