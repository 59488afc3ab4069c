#include "bert_qa/squad/synthetic_qa.h"

#include <fmt/format.h>

#include <algorithm>

#include "feed/counter_hash.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

constexpr int64_t kMinLength = 16;
constexpr int64_t kMinWords = 16;
constexpr int64_t kMaxQuestion = 20;
constexpr int64_t kMinAnswer = 2;
constexpr int64_t kMaxAnswer = 5;
// The number of words that mark the ends of an answer in the learnable variant. The other words
// have higher ids.
constexpr int64_t kTriggers = 2;

// The counters of a window's random numbers. Each draw has its own counter, so the order of draws
// does not matter. Counters from kFirstToken on belong to tokens.
enum Draw : uint64_t { kLength, kQuestion, kAnswerLength, kAnswerStart, kFirstToken };
constexpr uint64_t kAnswerType = uint64_t{1} << 32;  // beyond the counters of tokens

fsdp::CounterStream stream_of(const SyntheticOptions& options, int64_t epoch, int64_t index) {
  return {options.seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(index)};
}

}  // namespace

SyntheticQa::SyntheticQa(const SyntheticOptions& options) : options_(options) {
  const auto refuse = [](std::string what, std::string hint) {
    throw fsdp::InvalidArgument({.what = std::move(what), .hint = std::move(hint)});
  };
  if (options.window_count < 1) refuse("synthetic data has no window", "");
  if (options.min_length < kMinLength || options.max_length < options.min_length) {
    refuse(fmt::format("synthetic windows have {} to {} tokens", options.min_length,
                       options.max_length),
           fmt::format("use at least {} tokens", kMinLength));
  }
  const int64_t highest = std::max({options.pad_id, options.cls_id, options.sep_id});
  const int64_t lowest = std::min({options.pad_id, options.cls_id, options.sep_id});
  if (lowest < 0 || highest >= options.first_word_id ||
      options.first_word_id + kMinWords > options.vocab_size) {
    refuse(fmt::format("the highest special id is {}, first_word_id is {} and vocab_size is {}, "
                       "which do not fit together",
                       highest, options.first_word_id, options.vocab_size),
           fmt::format("use special ids from 0 to first_word_id - 1, and a vocab_size of at least "
                       "first_word_id + {}",
                       kMinWords));
  }
}

int64_t SyntheticQa::window_length(int64_t epoch, int64_t index) const {
  const int64_t lengths = options_.max_length - options_.min_length + 1;
  return options_.min_length + stream_of(options_, epoch, index).below(kLength, lengths);
}

QaBatch SyntheticQa::make_batch(int64_t epoch, std::span<const int64_t> windows,
                                int64_t length) const {
  int64_t longest = 0;
  for (const int64_t index : windows) longest = std::max(longest, window_length(epoch, index));
  if (length != 0 && longest > length) {
    throw fsdp::InvalidArgument(
        {.what =
             fmt::format("a window of {} tokens does not fit rows of {} tokens", longest, length),
         .hint = "pass a length of at least the longest window, or 0"});
  }
  QaBatch batch;
  batch.resize(static_cast<int64_t>(windows.size()), length != 0 ? length : longest);
  for (int64_t row = 0; row < batch.rows; ++row) write(epoch, windows[row], batch, row);
  return batch;
}

void SyntheticQa::write(int64_t epoch, int64_t index, QaBatch& batch, int64_t row) const {
  const fsdp::CounterStream stream = stream_of(options_, epoch, index);
  const int64_t length = window_length(epoch, index);
  // A question of at most a quarter of the window leaves room for the context and its answer.
  const int64_t question = 1 + stream.below(kQuestion, std::min(kMaxQuestion, length / 4));
  const int64_t context = question + 2;
  const int64_t answer = kMinAnswer + stream.below(kAnswerLength, kMaxAnswer - kMinAnswer + 1);
  const int64_t start = context + stream.below(kAnswerStart, length - 1 - context - answer + 1);

  const std::span<int64_t> ids = batch.row(batch.input_ids, row);
  const int64_t answer_types = options_.answer_types;
  const int64_t first_word = options_.first_word_id + kTriggers + answer_types;
  const int64_t type = answer_types > 0 ? stream.below(kAnswerType, answer_types) : -1;
  for (int64_t i = 0; i < length; ++i) {
    ids[i] = first_word + stream.below(kFirstToken + i, options_.vocab_size - first_word);
  }
  ids[0] = options_.cls_id;
  ids[question + 1] = options_.sep_id;
  ids[length - 1] = options_.sep_id;
  if (options_.learnable && answer_types > 0) ids[1] = options_.first_word_id + kTriggers + type;
  if (options_.learnable && type != 0) {
    ids[start] = options_.first_word_id;
    ids[start + answer - 1] = options_.first_word_id + 1;
  }
  std::fill(ids.begin() + length, ids.end(), options_.pad_id);
  const std::span<int64_t> types = batch.row(batch.token_type_ids, row);
  std::fill(types.begin() + context, types.begin() + length, 1);
  const std::span<int64_t> mask = batch.row(batch.attention_mask, row);
  std::fill(mask.begin(), mask.begin() + length, 1);
  if (type != 0) {
    batch.start_positions[row] = start;
    batch.end_positions[row] = start + answer - 1;
  }
  if (answer_types == 0) return;
  batch.answer_types.resize(batch.rows);
  batch.answer_types[row] = type;
}

}  // namespace bert_qa
