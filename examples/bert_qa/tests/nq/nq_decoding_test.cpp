#include "bert_qa/nq/nq_decoding.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bert_qa/nq/nq_reader.h"
#include "bert_qa/tests/support/nq_cases.h"

namespace bert_qa {
namespace {

using nlohmann::json;

// The tokens of the only window: [CLS] [Q] who [SEP] [ContextId=-1] [NoLongAnswer] [ContextId=0]
// [Paragraph=1] a b [ContextId=2] [List=1] c d [SEP]. In the document its words have the
// numbers 1, 2, 6 and 7.
constexpr int64_t kA = 8, kB = 9, kListMark = 11, kC = 12, kD = 13, kLength = 15;

struct Asked {
  NqFeatures features;
  std::vector<NqQuestion> questions;
  std::vector<WindowLogits> logits;

  Asked() : features(nq_tokenizer(), {}) {
    NqRecord record;
    parse_nq_record(
        R"({"example_id":-9,"question_text":"who","document_text":"<P> a b </P> <Ul> <Li> c d </Li> )"
        R"(</Ul>","long_answer_candidates":[{"start_token":0,"end_token":4,"top_level":true},)"
        R"({"start_token":5,"end_token":9,"top_level":false},)"
        R"({"start_token":4,"end_token":10,"top_level":true}]})",
        "r", /*need_annotations=*/false, record);
    features.add(record);
    questions.push_back(question_of(record));
    logits.push_back({.start = std::vector<float>(kLength),
                      .end = std::vector<float>(kLength),
                      .types = std::vector<float>(kAnswerTypes)});
    REQUIRE(features.window_length(0) == kLength);
    REQUIRE(features.word_at(0, kC) == 6);
  }
  void favour(int64_t start, int64_t end) {
    logits[0].start[start] += 3;
    logits[0].end[end] += 3;
  }
  NqPrediction predict(const NqDecodingOptions& options = {}) const {
    return decode_nq(questions, features, logits, options).at(0);
  }
};

TEST_CASE("the best span is the short answer, and its top-level candidate the long one") {
  Asked asked;
  asked.favour(kC, kD);
  asked.logits[0].start[0] = 0.5F;
  const NqPrediction found = asked.predict();
  CHECK(found.example_id == -9);
  CHECK(found.short_answers == std::vector{NqSpan{.start_token = 6, .end_token = 8}});
  CHECK(found.long_answer == NqSpan{.start_token = 4, .end_token = 10});
  CHECK(found.long_score == 5.5);  // minus the logits of [CLS]
  CHECK(found.short_score == 5.5);
  CHECK(found.yes_no == YesNo::kNone);
}

TEST_CASE("spans begin and end at words of the document, forwards, within the longest answer") {
  Asked marked;
  marked.favour(kListMark, kC);  // the start is a special token
  marked.logits[0].start[kC] = 2;
  CHECK(marked.predict().short_answers[0] == NqSpan{.start_token = 6, .end_token = 7});
  Asked backwards;
  backwards.favour(kD, kA);
  const NqPrediction turned = backwards.predict({.n_best_size = 1});
  CHECK(turned.short_answers.empty());
  CHECK(turned.long_answer.is_null());
  CHECK(turned.long_score == 0);
  Asked wide;
  wide.favour(kA, kD);
  CHECK(wide.predict().short_answers[0] == NqSpan{.start_token = 1, .end_token = 8});
  CHECK(wide.predict().long_answer.is_null());  // no candidate contains the span
  CHECK(wide.predict({.max_answer_length = 2}).short_answers[0] ==
        NqSpan{.start_token = 1, .end_token = 2});
}

TEST_CASE("the answer type yes or no replaces the short answer") {
  Asked asked;
  asked.favour(kA, kB);
  for (const auto& [type, yes_no] :
       {std::pair{AnswerType::kYes, YesNo::kYes}, std::pair{AnswerType::kNo, YesNo::kNo}}) {
    asked.logits[0].types.assign(kAnswerTypes, 0);
    asked.logits[0].types[static_cast<size_t>(type)] = 1;
    const NqPrediction found = asked.predict();
    CHECK(found.yes_no == yes_no);
    CHECK(found.short_answers.empty());
    CHECK(found.long_answer == NqSpan{.start_token = 0, .end_token = 4});
  }
}

TEST_CASE("predictions have the official JSON") {
  Asked asked;
  asked.favour(kA, kB);
  const NqPrediction found = asked.predict();
  CHECK(json(nq_predictions_json(std::span(&found, 1))) == json::parse(R"({"predictions": [{
      "example_id": -9,
      "long_answer": {"start_byte": -1, "end_byte": -1, "start_token": 0, "end_token": 4},
      "long_answer_score": 6.0,
      "short_answers": [{"start_byte": -1, "end_byte": -1, "start_token": 1, "end_token": 3}],
      "short_answers_score": 6.0,
      "yes_no_answer": "NONE"}]})"));
}

TEST_CASE("logits that do not fit the windows are refused") {
  Asked asked;
  asked.logits[0].end[3] = NAN;
  CHECK_THROWS_AS(asked.predict(), fsdp::InvalidArgument);
  asked.logits[0].end.assign(3, 0);
  CHECK_THROWS_AS(asked.predict(), fsdp::InvalidArgument);
  asked.logits.clear();
  CHECK_THROWS_AS(asked.predict(), fsdp::InvalidArgument);
}

}  // namespace
}  // namespace bert_qa
