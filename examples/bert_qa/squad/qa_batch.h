// Makes batches of windows as flat int64 rows, without a tensor library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bert_qa/squad/qa_features.h"

namespace bert_qa {

// A batch. input_ids, token_type_ids and attention_mask have the shape [rows, length], row by row.
// Positions have the shape [rows].
struct QaBatch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> input_ids;
  std::vector<int64_t> token_type_ids;
  std::vector<int64_t> attention_mask;
  std::vector<int64_t> start_positions;
  std::vector<int64_t> end_positions;

  // Sets the shape and fills all fields with zeros.
  void resize(int64_t new_rows, int64_t new_length);
  std::span<int64_t> row(std::vector<int64_t>& field, int64_t index) const {
    return std::span(field).subspan(index * length, length);
  }
};

// Returns the windows in the given order. If `length` is not 0, they are padded to `length`,
// otherwise to the longest of them. If there are no windows, the batch has no rows.
// Errors: InvalidArgument if a window is longer than `length`.
QaBatch make_batch(const QaFeatures& features, std::span<const int64_t> windows,
                   int64_t length = 0);

}  // namespace bert_qa
