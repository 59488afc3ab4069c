#include "bert_qa/squad/qa_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/error.h"

namespace bert_qa {

void QaBatch::resize(int64_t new_rows, int64_t new_length) {
  rows = new_rows;
  length = new_length;
  for (std::vector<int64_t>* field : {&input_ids, &token_type_ids, &attention_mask}) {
    field->assign(rows * length, 0);
  }
  start_positions.assign(rows, 0);
  end_positions.assign(rows, 0);
}

QaBatch make_batch(const QaFeatures& features, std::span<const int64_t> windows, int64_t length) {
  int64_t longest = 0;
  for (const int64_t window : windows) longest = std::max(longest, features.window_length(window));
  if (length != 0 && longest > length) {
    throw fsdp::InvalidArgument(
        {.what =
             fmt::format("a window of {} tokens does not fit rows of {} tokens", longest, length),
         .hint = "pad the rows to max_seq_length, or to the longest window"});
  }
  QaBatch batch;
  batch.resize(static_cast<int64_t>(windows.size()), length != 0 ? length : longest);
  for (int64_t i = 0; i < batch.rows; ++i) {
    features.write(windows[i], batch.row(batch.input_ids, i), batch.row(batch.token_type_ids, i),
                   batch.row(batch.attention_mask, i));
    batch.start_positions[i] = features.window(windows[i]).start_position;
    batch.end_positions[i] = features.window(windows[i]).end_position;
  }
  return batch;
}

}  // namespace bert_qa
