#include "bert_qa/squad/qa_features.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>

#include "bert_qa/text/unicode_text.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

constexpr int64_t kSpecialCount = 3;  // [CLS], [SEP], [SEP]

// Returns the number of context tokens that fit into a window beside the question.
int64_t room_beside(int64_t question_tokens, const FeatureOptions& options) {
  return options.max_seq_length - kSpecialCount - question_tokens;
}

// Returns the reason why a context cannot be cut into windows. Returns nothing if it can be cut or
// need not be.
std::optional<std::string> no_room(int64_t question_tokens, int64_t context_tokens,
                                   const FeatureOptions& options) {
  const int64_t room = room_beside(question_tokens, options);
  if (context_tokens <= room || room > options.doc_stride) return std::nullopt;
  return fmt::format(
      "a question of {} tokens leaves {} tokens for the context (max_seq_length is {}), expected "
      "more than doc_stride, {}",
      question_tokens, std::max<int64_t>(room, 0), options.max_seq_length, options.doc_stride);
}

}  // namespace

void leave_out_long_questions(QaDataset& dataset, const WordPieceTokenizer& tokenizer,
                              const FeatureOptions& options) {
  TokenList tokens;
  const auto has_no_room = [&](const QaQuestion& question) {
    tokenizer.tokenize(strip_left(question.question), tokens);
    const int64_t question_tokens = tokens.size();
    // In the usual case there is enough room, and the context need not be tokenized.
    if (room_beside(question_tokens, options) > options.doc_stride) return false;
    tokenizer.tokenize(dataset.context_of(question), tokens);
    const std::optional<std::string> reason = no_room(question_tokens, tokens.size(), options);
    if (reason) dataset.skipped.push_back({question.id, *reason});
    return reason.has_value();
  };
  std::erase_if(dataset.questions, has_no_room);
}

void QaFeatures::Texts::add(const TokenList& tokens, bool with_spans) {
  ids.insert(ids.end(), tokens.ids.begin(), tokens.ids.end());
  if (with_spans) spans.insert(spans.end(), tokens.spans.begin(), tokens.spans.end());
  begin.push_back(static_cast<int64_t>(ids.size()));
}

QaFeatures::QaFeatures(const QaDataset& dataset, const WordPieceTokenizer& tokenizer,
                       const FeatureOptions& options)
    : cls_id_(tokenizer.vocab().cls_id()),
      sep_id_(tokenizer.vocab().sep_id()),
      pad_id_(tokenizer.vocab().pad_id()) {
  if (options.doc_stride < 0) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("doc_stride is {}, expected 0 or more", options.doc_stride)});
  }
  TokenList tokens;
  for (const std::string& context : dataset.contexts) {
    tokenizer.tokenize(context, tokens);
    contexts_.add(tokens, /*with_spans=*/true);
  }
  first_window_.push_back(0);
  for (const QaQuestion& question : dataset.questions) {
    tokenizer.tokenize(strip_left(question.question), tokens);
    questions_.add(tokens, /*with_spans=*/false);
    context_of_.push_back(static_cast<int32_t>(question.context));
    add_windows(question, static_cast<int32_t>(context_of_.size()) - 1, options);
    first_window_.push_back(window_count());
  }
}

void QaFeatures::add_windows(const QaQuestion& question, int32_t index,
                             const FeatureOptions& options) {
  const int64_t total = contexts_.count(question.context);
  const int64_t room = room_beside(questions_.count(index), options);
  const int64_t step = room - options.doc_stride;
  if (const auto reason = no_room(questions_.count(index), total, options)) {
    throw fsdp::InvalidArgument(
        {.what = *reason,
         .where = fmt::format("question {}", fsdp::quoted_name(question.id)),
         .hint = "raise --max-seq-length or lower --doc-stride, or leave such questions out with "
                 "--skip-bad-rows"});
  }
  // An empty context also gets one window, so that each question has an answer.
  for (int64_t begin = 0;; begin += step) {
    const int64_t count = std::min(room, total - begin);
    QaWindow window{.question = index,
                    .context_begin = static_cast<int32_t>(begin),
                    .context_count = static_cast<int32_t>(count)};
    if (!question.answers.empty()) label(question.answers.front(), window);
    windows_.push_back(window);
    if (begin + count == total) break;
  }
}

// Labels a window with the first answer, like run_qa.py in training. Spans are in ascending order,
// so two searches replace its loops.
void QaFeatures::label(const QaAnswer& answer, QaWindow& window) const {
  const std::span<const TokenSpan> spans = context_spans(window);
  const int64_t begin = answer.start;
  const int64_t end = answer.start + count_code_points(answer.text);
  if (spans.empty() || spans.front().begin > begin || spans.back().end < end) return;
  const auto after_start = std::find_if(spans.begin(), spans.end(),
                                        [&](const TokenSpan& span) { return span.begin > begin; });
  const auto before_end = std::find_if(spans.rbegin(), spans.rend(),
                                       [&](const TokenSpan& span) { return span.end < end; });
  const int64_t first = 2 + questions_.count(window.question);  // after [CLS] question [SEP]
  window.start_position = static_cast<int32_t>(first + (after_start - spans.begin()) - 1);
  window.end_position = static_cast<int32_t>(first + (before_end.base() - spans.begin()));
}

std::span<const TokenSpan> QaFeatures::context_spans(const QaWindow& window) const {
  const int64_t begin = contexts_.begin[context_of_[window.question]] + window.context_begin;
  return std::span(contexts_.spans).subspan(begin, window.context_count);
}

int64_t QaFeatures::window_length(int64_t index) const {
  const QaWindow& window = windows_[index];
  return kSpecialCount + questions_.count(window.question) + window.context_count;
}

int64_t QaFeatures::context_position(int64_t index) const {
  return 2 + questions_.count(windows_[index].question);
}

void QaFeatures::write_row(int64_t index, QaBatch& batch, int64_t row) const {
  const QaWindow& window = windows_[index];
  const auto question =
      std::span(questions_.ids)
          .subspan(questions_.begin[window.question], questions_.count(window.question));
  const auto context =
      std::span(contexts_.ids)
          .subspan(contexts_.begin[context_of_[window.question]] + window.context_begin,
                   window.context_count);
  write_tokens({.question = question,
                .context = context,
                .cls_id = cls_id_,
                .sep_id = sep_id_,
                .pad_id = pad_id_},
               batch, row);
  batch.start_positions[row] = window.start_position;
  batch.end_positions[row] = window.end_position;
}

std::optional<TokenSpan> QaFeatures::context_span(int64_t index, int64_t token) const {
  const int64_t at = token - context_position(index);
  if (at < 0 || at >= windows_[index].context_count) return std::nullopt;
  return context_spans(windows_[index])[at];
}

}  // namespace bert_qa
