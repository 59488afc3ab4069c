#include "bert_qa/squad/qa_features.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "bert_qa/tests/support/qa_cases.h"
#include "bert_qa/tests/support/records.h"
#include "bert_qa/windows/qa_batch.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using nlohmann::json;
using Row = std::vector<int64_t>;

QaDataset one_question(const std::string& question, const std::string& context,
                       std::vector<QaAnswer> answers = {}) {
  return {.contexts = {context},
          .questions = {{.id = "q1", .question = question, .answers = std::move(answers)}}};
}

struct Labels {
  int64_t start, end;
  bool operator==(const Labels&) const = default;
};

// Returns the labels of all windows of a context that has ten words of one token. A window has five
// words. Consecutive windows share two words.
std::vector<Labels> labels(const std::string& text, int64_t start) {
  const QaDataset dataset = one_question("a", "b c d e f g h i j k", {{text, start}});
  const QaFeatures features(dataset, uncased_tokenizer(), {.max_seq_length = 9, .doc_stride = 2});
  std::vector<Labels> result;
  for (int64_t i = 0; i < features.window_count(); ++i) {
    result.push_back({features.window(i).start_position, features.window(i).end_position});
  }
  return result;
}

uint64_t hash_window(uint64_t hash, const QaFeatures& features, int64_t index) {
  const std::vector<int64_t> one = {index};
  const QaBatch batch = make_batch(features, one);
  for (int64_t token = 0; token < batch.length; ++token) {
    hash = add_to_hash(hash, batch.input_ids[token]);
    hash = add_to_hash(hash, batch.token_type_ids[token]);
    const auto span = features.context_span(index, token);
    hash = add_to_hash(hash, span ? span->begin : -1);
    hash = add_to_hash(hash, span ? span->end : -1);
  }
  return add_to_hash(add_to_hash(hash, batch.start_positions[0]), batch.end_positions[0]);
}

TEST_CASE("the windows of the shipped files are those of the record") {
  const json recorded = json::parse(fsdp::read_text(record_file("qa.json")));
  for (const json& expected : recorded.at("windows")) {
    CAPTURE(expected.dump());
    const QaDataset dataset = recorded_questions(expected.at("file"));
    const QaFeatures features(
        dataset, uncased_tokenizer(),
        {.max_seq_length = expected.at("max_seq_length"), .doc_stride = expected.at("doc_stride")});
    uint64_t hash = kHashStart;
    for (int64_t i = 0; i < features.window_count(); ++i) hash = hash_window(hash, features, i);
    CHECK(features.window_count() == expected.at("windows").get<int64_t>());
    CHECK(fmt::format("{:016x}", hash) == expected.at("hash").get<std::string>());
  }
}

TEST_CASE("the 1,021 training windows are those that transformers made") {
  const QaDataset dataset = recorded_questions("xquad-en-train.json");
  const QaFeatures features(dataset, uncased_tokenizer());
  REQUIRE(features.window_count() == 1021);
  std::istringstream lines(fsdp::read_text(record_file("squad_windows.tsv")));
  std::string line;
  for (int64_t i = 0; std::getline(lines, line); ++i) {
    const std::vector<int64_t> one = {i};
    const QaBatch batch = make_batch(features, one);
    uint32_t checksum = 0;
    for (int64_t k = 0; k < batch.length; ++k) {
      checksum += static_cast<uint32_t>((k + 1) * batch.input_ids[k]);
    }
    const int64_t begin = features.context_position(i);
    CHECK(line == fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                              dataset.questions[features.window(i).question].id, batch.length,
                              begin, batch.start_positions[0], batch.end_positions[0],
                              features.context_span(i, begin)->begin,
                              features.context_span(i, batch.length - 2)->end, checksum));
  }
}

TEST_CASE("a row is [CLS] question [SEP] context [SEP] and padding") {
  const QaDataset dataset = one_question(" \u3000unaffable?", "北京 is", {{"is", 3}});
  const QaFeatures features(dataset, uncased_tokenizer());
  const std::vector<int64_t> one = {0};
  const QaBatch batch = make_batch(features, one, 12);
  CHECK(batch.input_ids == Row{101, 14477, 20961, 3468, 1029, 102, 1781, 1755, 2003, 102, 0, 0});
  CHECK(batch.token_type_ids == Row{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0});
  CHECK(batch.attention_mask == Row{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0});
  CHECK(batch.start_positions == Row{8});
  CHECK(batch.end_positions == Row{8});
  CHECK(features.context_span(0, 8) == TokenSpan{3, 5});
  for (const int64_t token : {0, 5, 9, 10, 11, 100}) CHECK(!features.context_span(0, token));
}

TEST_CASE("windows overlap by doc_stride and hold an answer whole or not at all") {
  // The windows are b-f, e-i and h-k. In each window the context begins at token 3.
  CHECK(labels("b", 0) == std::vector<Labels>{{3, 3}, {0, 0}, {0, 0}});
  CHECK(labels("e f", 6) == std::vector<Labels>{{6, 7}, {3, 4}, {0, 0}});
  CHECK(labels("f", 8) == std::vector<Labels>{{7, 7}, {4, 4}, {0, 0}});
  CHECK(labels("f g", 8) == std::vector<Labels>{{0, 0}, {4, 5}, {0, 0}});
  CHECK(labels("k", 18) == std::vector<Labels>{{0, 0}, {0, 0}, {6, 6}});
  CHECK(labels("b c d e f g h i j k", 0) == std::vector<Labels>{{0, 0}, {0, 0}, {0, 0}});
}

TEST_CASE("an answer inside a token is labelled with the token") {
  const QaDataset dataset = one_question("a", "b capital c", {{"pit", 4}});
  const QaFeatures features(dataset, uncased_tokenizer());
  CHECK(features.window(0).start_position == 4);
  CHECK(features.window(0).end_position == 4);
}

TEST_CASE("questions without answers and empty contexts are labelled (0, 0)") {
  for (const QaDataset& dataset :
       {one_question("a", "b c"), one_question("a", " "), one_question("", "")}) {
    const QaFeatures features(dataset, uncased_tokenizer());
    REQUIRE(features.window_count() == 1);
    CHECK(features.window(0).start_position == 0);
    CHECK(features.window(0).end_position == 0);
  }
}

TEST_CASE("a question that leaves no room for its context is refused and named") {
  const QaDataset dataset = one_question("a b c d", "b c d e f g h");
  CHECK(QaFeatures(dataset, uncased_tokenizer(), {.max_seq_length = 14, .doc_stride = 99})
            .window_count() == 1);
  CHECK(QaFeatures(dataset, uncased_tokenizer(), {.max_seq_length = 10, .doc_stride = 2})
            .window_count() == 5);
  CHECK_THROWS_WITH_AS(
      QaFeatures(dataset, uncased_tokenizer(), {.max_seq_length = 10, .doc_stride = 3}),
      "a question of 4 tokens leaves 3 tokens for the context (max_seq_length is 10), expected "
      "more than doc_stride, 3 (question 'q1'); hint: raise --max-seq-length or lower "
      "--doc-stride, or leave such questions out with --skip-bad-rows",
      fsdp::InvalidArgument);
  CHECK_THROWS_AS(QaFeatures(dataset, uncased_tokenizer(), {.max_seq_length = 5, .doc_stride = 0}),
                  fsdp::InvalidArgument);
  CHECK_THROWS_AS(QaFeatures(dataset, uncased_tokenizer(), {.doc_stride = -1}),
                  fsdp::InvalidArgument);
}

TEST_CASE("questions that leave no room are left out where asked, and named") {
  QaDataset dataset = one_question("a b c d", "b c d e f g h");
  const FeatureOptions windows{.max_seq_length = 10, .doc_stride = 3};
  dataset.contexts.push_back("b c d");
  dataset.questions.push_back({.id = "short", .question = "a"});
  dataset.questions.push_back({.id = "fits", .question = "a b c d", .context = 1});
  leave_out_long_questions(dataset, uncased_tokenizer(), windows);
  REQUIRE(dataset.questions.size() == 2);
  CHECK(dataset.questions[0].id == "short");
  CHECK(dataset.questions[1].id == "fits");  // its context need not be cut
  REQUIRE(dataset.skipped.size() == 1);
  CHECK(dataset.skipped[0].id == "q1");
  CHECK(dataset.skipped[0].reason ==
        "a question of 4 tokens leaves 3 tokens for the context (max_seq_length is 10), expected "
        "more than doc_stride, 3");
  CHECK(QaFeatures(dataset, uncased_tokenizer(), windows).question_count() == 2);
}

TEST_CASE("a batch is padded to its longest window") {
  QaDataset dataset = one_question("a", "b c");
  dataset.questions.push_back({.id = "q2", .question = "a a a"});
  const QaFeatures features(dataset, uncased_tokenizer());
  const std::vector<int64_t> both = {1, 0};
  const QaBatch batch = make_batch(features, both);
  CHECK(batch.rows == 2);
  CHECK(batch.length == 8);
  CHECK(batch.input_ids == Row{101, 1037, 1037, 1037, 102, 1038, 1039, 102,  //
                               101, 1037, 102, 1038, 1039, 102, 0, 0});
  CHECK(make_batch(features, {}).rows == 0);
  CHECK(make_batch(features, {}, 16).length == 16);
  CHECK_THROWS_WITH_AS(
      make_batch(features, both, 7),
      "a window of 8 tokens does not fit rows of 7 tokens; hint: pad the rows to max_seq_length, "
      "or to the longest window",
      fsdp::InvalidArgument);
}

}  // namespace
}  // namespace bert_qa
