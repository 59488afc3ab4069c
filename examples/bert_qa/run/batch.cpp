#include "bert_qa/run/batch.h"

#include <ATen/Utils.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace bert_qa {

Batch make_tensors(const QaBatch& rows) {
  if (rows.rows == 0) {
    const at::Tensor zeros_BS = at::zeros({1, 1}, at::kLong);
    // The labels equal the length, and the type is -1, so the loss ignores them.
    const at::Tensor length_B = at::full({1}, 1, at::kLong);
    return {.ids_BS = zeros_BS,
            .segments_BS = zeros_BS,
            .attention_mask_BS = at::ones({1, 1}, at::kLong),
            .first_B = length_B,
            .last_B = length_B,
            .types_B = at::full({1}, -1, at::kLong)};
  }
  const auto row_by_row = [&](const std::vector<int64_t>& values) {
    return at::tensor(values).view({rows.rows, rows.length});
  };
  Batch batch{.ids_BS = row_by_row(rows.input_ids),
              .segments_BS = row_by_row(rows.token_type_ids),
              .attention_mask_BS = row_by_row(rows.attention_mask),
              .first_B = at::tensor(rows.start_positions),
              .last_B = at::tensor(rows.end_positions)};
  if (!rows.answer_types.empty()) batch.types_B = at::tensor(rows.answer_types);
  return batch;
}

}  // namespace bert_qa
