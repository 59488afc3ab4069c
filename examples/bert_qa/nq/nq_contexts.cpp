#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <string_view>

#include "bert_qa/nq/nq_features.h"
#include "bert_qa/nq/nq_vocab.h"
#include "bert_qa/nq/nq_words.h"

namespace bert_qa {
namespace {

constexpr int64_t kNotOfDocument = -1;

std::string_view kind_of(std::string_view first_token) {
  if (first_token == "<Table>") return "Table";
  if (first_token == "<P>") return "Paragraph";
  if (first_token == "<Ul>" || first_token == "<Dl>" || first_token == "<Ol>") return "List";
  return "Other";
}

bool has_text(const NqDocument& document, const NqSpan& span) {
  for (int64_t i = span.start_token; i < span.end_token; ++i) {
    if (!document.is_html(i) && !document.token(i).empty()) return true;
  }
  return false;
}

// Returns the position after the last token of a word before `end_word`, and of the first token of
// a word from `first_word` on.
std::pair<int64_t, int64_t> tokens_of(const NqContexts& contexts, int64_t first_word,
                                      int64_t end_word) {
  // Words are in ascending order, apart from tokens that are not of the document.
  int64_t first = -1, end = -1;
  for (int64_t i = 0; i < std::ssize(contexts.words); ++i) {
    const int64_t word = contexts.words[i];
    if (word < first_word || word >= end_word) continue;
    if (first < 0) first = i;
    end = i + 1;
  }
  return {first, end};
}

}  // namespace

NqWords::NqWords(const WordPieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

const std::vector<int32_t>& NqWords::ids_of(std::string_view word) {
  if (word.size() >= 2 && word.front() == '[' && word.back() == ']') {
    tokens_.ids.assign(1, tokenizer_.vocab().find(word).value_or(tokenizer_.vocab().unk_id()));
  } else {
    tokenizer_.tokenize(word, tokens_);
  }
  return tokens_.ids;
}

NqContexts nq_contexts(const NqRecord& record, const WordPieceTokenizer& tokenizer,
                       int64_t max_contexts) {
  NqContexts contexts;
  NqWords words(tokenizer);
  const auto add = [&](std::string_view word, int64_t number) {
    const std::vector<int32_t>& ids = words.ids_of(word);
    contexts.ids.insert(contexts.ids.end(), ids.begin(), ids.end());
    contexts.words.resize(contexts.ids.size(), static_cast<int32_t>(number));
  };
  add("[ContextId=-1]", kNotOfDocument);
  add("[NoLongAnswer]", kNotOfDocument);
  std::map<std::string_view, int> positions;
  int64_t count = 1;
  for (size_t i = 0; i < record.candidates.size() && count < max_contexts; ++i) {
    const auto& [span, top_level] = record.candidates[i];
    if (!top_level || !has_text(record.document, span)) continue;
    ++count;
    const std::string_view kind = kind_of(record.document.token(span.start_token));
    int& position = positions[kind];
    position = std::min(position + 1, kMaxNqPosition);
    add(fmt::format("[ContextId={}]", i), kNotOfDocument);
    add(fmt::format("[{}={}]", kind, position), kNotOfDocument);
    for (int64_t word = span.start_token; word < span.end_token; ++word) {
      if (!record.document.is_html(word)) add(record.document.token(word), word);
    }
  }
  return contexts;
}

NqLabel nq_label(const NqRecord& record, const NqContexts& contexts) {
  std::vector<const NqAnnotation*> annotations;
  for (const NqAnnotation& each : record.annotations) {
    if (each.candidate >= 0) annotations.push_back(&each);
  }
  std::ranges::stable_sort(annotations, {}, &NqAnnotation::candidate);
  const auto label_of = [&](AnswerType type, int64_t first_word, int64_t end_word) {
    const auto [first, end] = tokens_of(contexts, first_word, end_word);
    return first < 0 ? NqLabel{} : NqLabel{.type = type, .first = first, .last = end - 1};
  };
  for (const NqAnnotation* each : annotations) {
    if (each->short_answers.empty()) continue;
    const NqSpan words{.start_token = each->short_answers.front().start_token,
                       .end_token = each->short_answers.back().end_token};
    if (!has_text(record.document, words)) continue;
    return label_of(AnswerType::kShort, words.start_token, words.end_token);
  }
  if (annotations.empty()) return {};
  const NqAnnotation& first = *annotations.front();
  const AnswerType type = first.yes_no == YesNo::kYes  ? AnswerType::kYes
                          : first.yes_no == YesNo::kNo ? AnswerType::kNo
                                                       : AnswerType::kLong;
  return label_of(type, first.long_answer.start_token, first.long_answer.end_token);
}

}  // namespace bert_qa
