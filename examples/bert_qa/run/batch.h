// Converts windows to tensors, which are padded to the longest window of the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "bert_qa/windows/qa_batch.h"

namespace bert_qa {

// A batch of windows. All tensors are int64.
struct Batch {
  at::Tensor ids_BS, segments_BS, attention_mask_BS;
  at::Tensor first_B, last_B;  // answer's tokens; 0 if the window does not hold the answer
  at::Tensor types_B{};        // undefined if windows have no answer types
};

// Returns tensors on the CPU. A rank without windows gets one row of padding that the loss ignores,
// so that it can issue every collective.
Batch make_tensors(const QaBatch& rows);

}  // namespace bert_qa
