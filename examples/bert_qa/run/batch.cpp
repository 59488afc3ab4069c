#include "bert_qa/run/batch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace bert_qa {
namespace {

// A copy to a GPU is beside the host only from pinned memory; LibTorch keeps that until it is done.
at::Tensor tensor(const std::vector<int64_t>& values, at::IntArrayRef shape, at::Device device) {
  const auto options = at::TensorOptions(at::kLong).pinned_memory(device.is_cuda());
  const at::Tensor host = at::empty(shape, options);
  std::ranges::copy(values, host.mutable_data_ptr<int64_t>());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace

Batch::Batch(const QaBatch& rows, at::Device device) {
  if (rows.rows == 0) {
    const auto options = at::TensorOptions(at::kLong).device(device);
    ids_BS = segments_BS = at::zeros({1, 1}, options);
    attention_mask_BS = at::ones({1, 1}, options);
    first_B = last_B = at::full({1}, 1, options);  // the length: ignored by the loss
    return;
  }
  const std::vector<int64_t> shape = {rows.rows, rows.length};
  ids_BS = tensor(rows.input_ids, shape, device);
  segments_BS = tensor(rows.token_type_ids, shape, device);
  attention_mask_BS = tensor(rows.attention_mask, shape, device);
  first_B = tensor(rows.start_positions, {rows.rows}, device);
  last_B = tensor(rows.end_positions, {rows.rows}, device);
}

}  // namespace bert_qa
