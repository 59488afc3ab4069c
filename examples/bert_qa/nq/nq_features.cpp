#include "bert_qa/nq/nq_features.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>

#include "bert_qa/nq/nq_words.h"
#include "feed/counter_hash.h"

namespace bert_qa {
namespace {

constexpr int64_t kSpecialTokens = 3;  // [CLS], [SEP], [SEP]

// Returns true with the given probability, equally on every rank and in every epoch.
bool is_drawn(double probability, uint64_t seed, int64_t question, int64_t window) {
  constexpr double kUnit = 0x1p-53;
  const fsdp::CounterStream stream(seed, 0, static_cast<uint64_t>(question));
  return static_cast<double>(stream.at(window) >> 11) * kUnit < probability;
}

}  // namespace

NqFeatures::NqFeatures(const WordPieceTokenizer& tokenizer, const NqFeatureOptions& options)
    : tokenizer_(tokenizer), options_(options) {
  if (options.max_query_length < 1 ||
      options.max_seq_length <= options.max_query_length + kSpecialTokens) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("windows of {} tokens have no room for a question of {} tokens and "
                             "its context",
                             options.max_seq_length, options.max_query_length),
         .hint = "raise --max-seq-length or lower --max-query-length"});
  }
  if (options.doc_stride < 1) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("doc_stride is {}, expected 1 or more", options.doc_stride)});
  }
}

void NqFeatures::add_question(std::string_view question) {
  NqWords words(tokenizer_);
  std::vector<int32_t> ids = words.ids_of("[Q]");
  for (size_t at = 0; at <= question.size();) {
    const size_t end = std::min(question.find(' ', at), question.size());
    const std::vector<int32_t>& more = words.ids_of(question.substr(at, end - at));
    ids.insert(ids.end(), more.begin(), more.end());
    at = end + 1;
  }
  const int64_t kept = std::min(std::ssize(ids), options_.max_query_length);
  question_ids_.insert(question_ids_.end(), ids.end() - kept, ids.end());
  question_begin_.push_back(std::ssize(question_ids_));
}

void NqFeatures::add(const NqRecord& record) {
  const int64_t question = question_count();
  add_question(record.question);
  Current current{.contexts = nq_contexts(record, tokenizer_, options_.max_contexts)};
  if (options_.for_training) current.label = nq_label(record, current.contexts);
  const int64_t total = std::ssize(current.contexts.ids);
  const int64_t room = options_.max_seq_length - kSpecialTokens - question_tokens(question);
  int64_t number = 0;
  for (int64_t begin = 0;; begin += std::min(room, options_.doc_stride)) {
    NqWindow window{.question = static_cast<int32_t>(question),
                    .context_count = static_cast<int32_t>(std::min(room, total - begin))};
    if (options_.for_training) label(current.label, begin, window);
    const bool is_kept = !options_.for_training || window.type != AnswerType::kUnknown ||
                         is_drawn(options_.include_unknowns, options_.seed, question, number++);
    if (is_kept) store(current, begin, window);
    if (begin + window.context_count == total) break;
  }
  first_window_.push_back(window_count());
}

void NqFeatures::label(const NqLabel& answer, int64_t begin, NqWindow& window) const {
  if (answer.type == AnswerType::kUnknown || answer.first < begin ||
      answer.last >= begin + window.context_count) {
    return;
  }
  const int64_t first = 2 + question_tokens(window.question);  // after [CLS] question [SEP]
  window.start_position = static_cast<int32_t>(first + answer.first - begin);
  window.end_position = static_cast<int32_t>(first + answer.last - begin);
  window.type = answer.type;
}

// Neighbouring windows share tokens, so only tokens behind the stored ones are appended.
void NqFeatures::store(Current& current, int64_t begin, NqWindow& window) {
  const int64_t shared = std::max<int64_t>(current.stored_end - begin, 0);
  window.context_begin = std::ssize(stored_.ids) - shared;
  current.stored_end = begin + window.context_count;
  const auto append = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
    to.insert(to.end(), from.begin() + begin + shared, from.begin() + current.stored_end);
  };
  append(current.contexts.ids, stored_.ids);
  if (!options_.for_training) append(current.contexts.words, stored_.words);
  windows_.push_back(window);
}

int64_t NqFeatures::window_length(int64_t index) const {
  const NqWindow& window = windows_[index];
  return kSpecialTokens + question_tokens(window.question) + window.context_count;
}

void NqFeatures::write_row(int64_t index, QaBatch& batch, int64_t row) const {
  const NqWindow& window = windows_[index];
  const WordPieceVocab& vocab = tokenizer_.vocab();
  write_tokens(
      {.question = std::span(question_ids_)
                       .subspan(question_begin_[window.question], question_tokens(window.question)),
       .context = std::span(stored_.ids).subspan(window.context_begin, window.context_count),
       .cls_id = vocab.cls_id(),
       .sep_id = vocab.sep_id(),
       .pad_id = vocab.pad_id()},
      batch, row);
  batch.start_positions[row] = window.start_position;
  batch.end_positions[row] = window.end_position;
  batch.answer_types.resize(batch.rows);
  batch.answer_types[row] = static_cast<int64_t>(window.type);
}

std::string NqFeatures::text(int64_t question, int64_t begin, int64_t end) const {
  // The windows of a question share one range of stored tokens.
  const NqWindow& last = windows_[first_window(question + 1) - 1];
  std::string text;
  for (int64_t at = windows_[first_window(question)].context_begin;
       at < last.context_begin + last.context_count; ++at) {
    if (stored_.words[at] < begin || stored_.words[at] >= end) continue;
    const std::string_view token = tokenizer_.vocab().token(stored_.ids[at]);
    const bool continues = token.starts_with("##");
    if (!text.empty() && !continues) text += ' ';
    text += continues ? token.substr(2) : token;
  }
  return text;
}

int64_t NqFeatures::word_at(int64_t index, int64_t position) const {
  const NqWindow& window = windows_[index];
  const int64_t at = position - 2 - question_tokens(window.question);
  if (at < 0 || at >= window.context_count) return -1;
  return stored_.words[window.context_begin + at];
}

}  // namespace bert_qa
