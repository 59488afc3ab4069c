#include "bert_qa/run/batch.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace bert_qa {
namespace {

at::Tensor tensor(const std::vector<int64_t>& values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<int64_t*>(values.data()), shape, at::kLong).clone();
}

}  // namespace

Batch::Batch(const QaBatch& rows) {
  if (rows.rows == 0) {
    ids_BS = segments_BS = at::zeros({1, 1}, at::kLong);
    attention_mask_BS = at::ones({1, 1}, at::kLong);
    first_B = last_B = at::full({1}, 1, at::kLong);  // the length: ignored by the loss
    return;
  }
  const std::vector<int64_t> shape = {rows.rows, rows.length};
  ids_BS = tensor(rows.input_ids, shape);
  segments_BS = tensor(rows.token_type_ids, shape);
  attention_mask_BS = tensor(rows.attention_mask, shape);
  first_B = tensor(rows.start_positions, {rows.rows});
  last_B = tensor(rows.end_positions, {rows.rows});
}

}  // namespace bert_qa
