// Makes batches of windows as flat int64 rows, without a tensor library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace bert_qa {

// A batch. input_ids, token_type_ids and attention_mask have the shape [rows, length], row by row.
// The other fields have the shape [rows].
struct QaBatch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> input_ids;
  std::vector<int64_t> token_type_ids;
  std::vector<int64_t> attention_mask;
  std::vector<int64_t> start_positions;
  std::vector<int64_t> end_positions;
  std::vector<int64_t> answer_types;  // empty if windows have no answer types

  // Sets the shape and fills the fields with zeros. Leaves answer_types empty.
  void resize(int64_t new_rows, int64_t new_length);
  std::span<int64_t> row(std::vector<int64_t>& field, int64_t index) const {
    return std::span(field).subspan(index * length, length);
  }
};

// The windows of a file. Implementations are immutable, so all functions are thread-safe.
class Windows {
 public:
  virtual ~Windows() = default;

  virtual int64_t window_count() const = 0;
  // Returns the number of tokens in a window, including special tokens.
  virtual int64_t window_length(int64_t index) const = 0;
  // Fills a row of the batch, with padding at its end. Requires: batch.length >=
  // window_length(index).
  virtual void write_row(int64_t index, QaBatch& batch, int64_t row) const = 0;
};

// The tokens of one window.
struct WindowTokens {
  std::span<const int32_t> question, context;
  int32_t cls_id = 0, sep_id = 0, pad_id = 0;
};

// Fills a row with [CLS] question [SEP] context [SEP] and padding. The context and its [SEP] are
// segment 1. Requires: the row is as resize() left it, and is long enough.
void write_tokens(const WindowTokens& tokens, QaBatch& batch, int64_t row);

// Returns the windows in the given order. If `length` is not 0, they are padded to `length`,
// otherwise to the longest of them. If there are no windows, the batch has no rows.
// Errors: InvalidArgument if a window is longer than `length`.
QaBatch make_batch(const Windows& windows, std::span<const int64_t> picked, int64_t length = 0);

}  // namespace bert_qa
