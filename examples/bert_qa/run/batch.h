// Windows as tensors, padded to the longest of the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "bert_qa/squad/qa_batch.h"

namespace bert_qa {

// int64, on a device. A rank without windows gets one row of padding whose labels count for
// nothing, so that it takes part in every collective.
struct Batch {
  at::Tensor ids_BS, segments_BS, attention_mask_BS;
  at::Tensor first_B, last_B;  // of the answer; 0 where the window does not hold it

  // To a GPU it is copied in the order of the current stream, while the caller goes on.
  Batch(const QaBatch& rows, at::Device device);
};

}  // namespace bert_qa
