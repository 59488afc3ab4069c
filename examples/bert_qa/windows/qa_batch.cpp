#include "bert_qa/windows/qa_batch.h"

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
  answer_types.clear();
}

void write_tokens(const WindowTokens& tokens, QaBatch& batch, int64_t row) {
  const std::span<int64_t> ids = batch.row(batch.input_ids, row);
  auto at = ids.begin();
  *at++ = tokens.cls_id;
  at = std::copy(tokens.question.begin(), tokens.question.end(), at);
  *at++ = tokens.sep_id;
  const int64_t context_at = at - ids.begin();
  at = std::copy(tokens.context.begin(), tokens.context.end(), at);
  *at++ = tokens.sep_id;
  const int64_t length = at - ids.begin();
  std::fill(at, ids.end(), tokens.pad_id);
  const std::span<int64_t> types = batch.row(batch.token_type_ids, row);
  std::fill(types.begin() + context_at, types.begin() + length, 1);
  const std::span<int64_t> mask = batch.row(batch.attention_mask, row);
  std::fill(mask.begin(), mask.begin() + length, 1);
}

QaBatch make_batch(const Windows& windows, std::span<const int64_t> picked, int64_t length) {
  int64_t longest = 0;
  for (const int64_t window : picked) longest = std::max(longest, windows.window_length(window));
  if (length != 0 && longest > length) {
    throw fsdp::InvalidArgument(
        {.what =
             fmt::format("a window of {} tokens does not fit rows of {} tokens", longest, length),
         .hint = "pad the rows to max_seq_length, or to the longest window"});
  }
  QaBatch batch;
  batch.resize(static_cast<int64_t>(picked.size()), length != 0 ? length : longest);
  for (int64_t row = 0; row < batch.rows; ++row) windows.write_row(picked[row], batch, row);
  return batch;
}

}  // namespace bert_qa
