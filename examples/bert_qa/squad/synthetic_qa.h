// Question windows without data: the shapes, types and label ranges of the real ones, as a function
// of (seed, epoch, index). No disk and no state, the same for any world size.
#pragma once

#include <cstdint>
#include <span>

#include "bert_qa/squad/qa_batch.h"

namespace bert_qa {

struct SyntheticOptions {
  uint64_t seed = 42;
  int64_t window_count = 1024;  // an epoch
  int64_t min_length = 64;      // tokens, the special ones included
  int64_t max_length = 384;
  int64_t vocab_size = 30522;
  // Below first_word_id; those from it on are words.
  int64_t pad_id = 0;
  int64_t cls_id = 101;
  int64_t sep_id = 102;
  int64_t first_word_id = 999;
  // The answer begins with one word that stands nowhere else and ends with another, so that a tiny
  // model learns to find it. Otherwise answers are anywhere and nothing can be learnt.
  bool learnable = false;
};

class SyntheticQa {
 public:
  // Errors: InvalidArgument if lengths, ids or counts do not fit together.
  explicit SyntheticQa(const SyntheticOptions& options);

  int64_t window_count() const { return options_.window_count; }
  int64_t window_length(int64_t epoch, int64_t index) const;
  // [CLS] question [SEP] context [SEP], padded to the longest of the windows, or to `length` if
  // that is not 0. Every window has an answer of 2 to 5 tokens in its context. Requires 0 <= index
  // < window_count() for each of `windows`. Errors: InvalidArgument if a window is longer than
  // `length`.
  QaBatch make_batch(int64_t epoch, std::span<const int64_t> windows, int64_t length = 0) const;

 private:
  void write(int64_t epoch, int64_t index, QaBatch& batch, int64_t row) const;

  SyntheticOptions options_;
};

}  // namespace bert_qa
