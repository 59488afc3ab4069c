#include "bert_qa/nq/nq_features.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <algorithm>
#include <set>
#include <string>

#include "bert_qa/nq/nq_vocab.h"
#include "bert_qa/tests/support/nq_cases.h"
#include "bert_qa/tests/support/qa_cases.h"

namespace bert_qa {
namespace {

// Returns a record with candidates of the given texts, one after the other.
NqRecord page_of(const std::vector<std::string>& candidates) {
  NqRecord record{.example_id = 1, .question = "who ?"};
  for (const std::string& text : candidates) {
    const int64_t begin = record.document.size();
    record.document.add("<P>", true);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      record.document.add(text.substr(at, end - at), false);
      at = end + 1;
    }
    record.document.add("</P>", true);
    record.candidates.push_back(
        {.span = {.start_token = begin, .end_token = record.document.size()}, .top_level = true});
  }
  return record;
}

NqAnnotation answer_in(const NqRecord& record, int64_t candidate,
                       std::vector<std::pair<int64_t, int64_t>> parts,
                       YesNo yes_no = YesNo::kNone) {
  NqAnnotation annotation{.long_answer = record.candidates[candidate].span,
                          .candidate = candidate,
                          .short_answers = {},
                          .yes_no = yes_no};
  for (const auto& [begin, end] : parts) {
    annotation.short_answers.push_back({.start_token = begin, .end_token = end});
  }
  return annotation;
}

std::string text_of(const NqFeatures& features, int64_t window) {
  const std::vector<int64_t> one = {window};
  std::string text;
  for (const int64_t id : make_batch(features, one).input_ids) {
    text += (text.empty() ? "" : " ") + nq_tokenizer().vocab().token(id);
  }
  return text;
}

struct Labelled {
  AnswerType type;
  std::string text;
  bool operator==(const Labelled&) const = default;
};

// Returns the answer of a record whose page fits one window.
Labelled label_of(const NqRecord& record) {
  NqFeatures features(nq_tokenizer(), {.for_training = true, .include_unknowns = 1});
  features.add(record);
  REQUIRE(features.window_count() == 1);
  const NqWindow& window = features.window(0);
  const std::vector<int64_t> one = {0};
  const QaBatch batch = make_batch(features, one);
  CHECK(batch.answer_types[0] == static_cast<int64_t>(window.type));
  std::string text;
  for (int64_t at = window.start_position; at <= window.end_position; ++at) {
    text += (text.empty() ? "" : " ") + nq_tokenizer().vocab().token(batch.input_ids[at]);
  }
  return {window.type, text};
}

TEST_CASE("a window has the question, then top-level candidates behind their special tokens") {
  NqRecord record = page_of({"a b", "[SEP] [Q] [1]", "", "c"});
  record.candidates[3].top_level = false;
  NqFeatures features(nq_tokenizer(), {.for_training = false});
  features.add(record);
  REQUIRE(features.window_count() == 1);
  CHECK(text_of(features, 0) ==
        "[CLS] [Q] who ? [SEP] [ContextId=-1] [NoLongAnswer] [ContextId=0] [Paragraph=1] a b "
        "[ContextId=1] [Paragraph=2] [SEP] [Q] [UNK] [SEP]");
  CHECK(features.word_at(0, 0) == -1);
  CHECK(features.word_at(0, 8) == -1);
  CHECK(features.word_at(0, 9) == 1);
  CHECK(features.word_at(0, 10) == 2);
}

TEST_CASE("at most max_contexts contexts are read, and a question keeps its last tokens") {
  NqRecord record = page_of({"a", "b", "c"});
  record.question = "one two three four";
  NqFeatures features(nq_tokenizer(), {.max_query_length = 2, .max_contexts = 3});
  features.add(record);
  CHECK(text_of(features, 0) ==
        "[CLS] three four [SEP] [ContextId=-1] [NoLongAnswer] [ContextId=0] [Paragraph=1] a "
        "[ContextId=1] [Paragraph=2] b [SEP]");
}

TEST_CASE("each kind of answer has its type and its words") {
  NqRecord record = page_of({"a b c", "d e f"});
  const auto label = [&](std::vector<NqAnnotation> annotations) {
    record.annotations = std::move(annotations);
    return label_of(record);
  };
  const Labelled none{AnswerType::kUnknown, "[CLS]"};
  CHECK(label({{}}) == none);
  CHECK(label({}) == none);
  CHECK(label({answer_in(record, 0, {})}) == Labelled{AnswerType::kLong, "a b c"});
  CHECK(label({answer_in(record, 1, {}, YesNo::kYes)}) == Labelled{AnswerType::kYes, "d e f"});
  CHECK(label({answer_in(record, 1, {}, YesNo::kNo)}) == Labelled{AnswerType::kNo, "d e f"});
  CHECK(label({answer_in(record, 0, {{2, 3}})}) == Labelled{AnswerType::kShort, "b"});
  // From the first part to the last.
  CHECK(label({answer_in(record, 0, {{1, 2}, {3, 4}})}) == Labelled{AnswerType::kShort, "a b c"});
  // The first annotation with a short answer, in the order of candidates.
  CHECK(label({answer_in(record, 1, {{6, 7}}),
               answer_in(record, 0, {}),
               answer_in(record, 0, {{3, 4}}),
               {}}) == Labelled{AnswerType::kShort, "c"});
  // A short answer of tags counts as none.
  CHECK(label({answer_in(record, 0, {{0, 1}})}) == Labelled{AnswerType::kLong, "a b c"});
  // A candidate that is not among the contexts.
  record.candidates[1].top_level = false;
  CHECK(label({answer_in(record, 1, {})}) == none);
}

TEST_CASE("windows without the whole answer are of type unknown, and few of them are kept") {
  std::string text = "a";
  for (int i = 1; i < 400; ++i) text += " a";
  NqRecord record = page_of({text});
  record.annotations = {answer_in(record, 0, {{1, 2}})};
  const NqFeatureOptions all{.max_seq_length = 64,
                             .doc_stride = 16,
                             .max_query_length = 8,
                             .for_training = true,
                             .include_unknowns = 1};
  NqFeatureOptions few = all;
  few.include_unknowns = 0.3;
  NqFeatures features(nq_tokenizer(), few), again(nq_tokenizer(), few), every(nq_tokenizer(), all);
  few.seed = 7;
  NqFeatures other(nq_tokenizer(), few);
  for (NqFeatures* each : {&features, &again, &every, &other}) {
    for (int i = 0; i < 100; ++i) each->add(record);
  }
  const auto windows = [](const NqFeatures& from) {
    std::vector<std::string> texts;
    for (int64_t i = 0; i < from.window_count(); ++i) {
      texts.push_back(std::to_string(from.window(i).question) + text_of(from, i));
    }
    return texts;
  };
  const std::vector<std::string> kept = windows(features), of_all = windows(every);
  CHECK(kept == windows(again));
  CHECK(kept != windows(other));
  const std::set<std::string> known(of_all.begin(), of_all.end());
  CHECK(std::ranges::all_of(kept, [&](const auto& each) { return known.count(each) == 1; }));
  const auto answered = [](const NqFeatures& from) {
    int64_t count = 0;
    for (int64_t i = 0; i < from.window_count(); ++i) {
      count += from.window(i).type == AnswerType::kShort ? 1 : 0;
    }
    return count;
  };
  CHECK(answered(features) == answered(every));
  const double share = static_cast<double>(features.window_count() - answered(every)) /
                       static_cast<double>(every.window_count() - answered(every));
  CHECK(share > 0.25);
  CHECK(share < 0.35);
  few.include_unknowns = 0;
  NqFeatures none(nq_tokenizer(), few);
  none.add(record);
  CHECK(none.window_count() == answered(none));
}

TEST_CASE("the tokens of Natural Questions replace unused tokens") {
  std::vector<std::string> notes;
  const WordPieceVocab& plain = uncased_tokenizer().vocab();
  const WordPieceVocab vocab = with_nq_tokens(plain, notes);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] ==
        "703 of 703 tokens of Natural Questions replace [unused] tokens of the vocabulary");
  CHECK(vocab.size() == plain.size());
  for (const std::string& token : nq_tokens()) CHECK(vocab.find(token));
  CHECK(vocab.find("the") == plain.find("the"));
  CHECK(with_nq_tokens(vocab, notes).size() == vocab.size());
  CHECK(notes.size() == 1);  // nothing changed
  const WordPieceVocab small =
      WordPieceVocab::parse("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n", "v");
  CHECK(with_nq_tokens(small, notes).token(5) == "[Q]");
  CHECK(notes[1] ==
        "1 of 703 tokens of Natural Questions replace [unused] tokens of the vocabulary; the "
        "others are [UNK]");
}

TEST_CASE("windows without room for a document are refused") {
  CHECK_THROWS_AS(NqFeatures(nq_tokenizer(), {.max_seq_length = 67}), fsdp::InvalidArgument);
  CHECK_THROWS_AS(NqFeatures(nq_tokenizer(), {.doc_stride = 0}), fsdp::InvalidArgument);
}

}  // namespace
}  // namespace bert_qa
