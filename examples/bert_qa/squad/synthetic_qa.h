// Generates question windows with the shapes, types and label ranges of real windows. A window is a
// function of (seed, epoch, index). There is no file and no state, so the windows are the same for
// any world size.
#pragma once

#include <cstdint>
#include <span>

#include "bert_qa/windows/qa_batch.h"

namespace bert_qa {

// Options of the generator.
struct SyntheticOptions {
  uint64_t seed = 42;
  int64_t window_count = 1024;  // windows per epoch
  int64_t min_length = 64;      // in tokens, including special tokens
  int64_t max_length = 384;
  int64_t vocab_size = 30522;
  // The ids of special tokens are below first_word_id. Ids from first_word_id on are words.
  int64_t pad_id = 0;
  int64_t cls_id = 101;
  int64_t sep_id = 102;
  int64_t first_word_id = 999;
  // Begins and ends each answer with a word that occurs nowhere else, so that a tiny model learns
  // to find the answer. Without this option answers are at random positions, and a model cannot
  // learn them.
  bool learnable = false;
  // The number of answer types. If it is not 0, each window has a random type. A window of type 0
  // has no answer, and its positions are 0. In the learnable variant, the word after [CLS] tells
  // the type.
  int64_t answer_types = 0;
};

// The generator.
class SyntheticQa {
 public:
  // Errors: InvalidArgument if lengths, ids or counts contradict each other.
  explicit SyntheticQa(const SyntheticOptions& options);

  int64_t window_count() const { return options_.window_count; }
  int64_t window_length(int64_t epoch, int64_t index) const;
  // Returns [CLS] question [SEP] context [SEP] for each window. If `length` is not 0, rows are
  // padded to `length`, otherwise to the longest window. Every window, apart from those of type 0,
  // has an answer of 2 to 5 tokens in its context.
  // Requires: 0 <= index < window_count() for each index in `windows`.
  // Errors: InvalidArgument if a window is longer than `length`.
  QaBatch make_batch(int64_t epoch, std::span<const int64_t> windows, int64_t length = 0) const;

 private:
  void write(int64_t epoch, int64_t index, QaBatch& batch, int64_t row) const;

  SyntheticOptions options_;
};

}  // namespace bert_qa
