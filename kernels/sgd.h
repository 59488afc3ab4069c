// SGD with momentum on flat fp32 shards: one call updates every segment of a table.
//
// The arithmetic is torch::optim::SGD's, operation by operation in fp32:
//   d  = grad · grad_scale
//   d  = fma(p, weight_decay, d)                                    (if weight_decay != 0)
//   b  = d at the first update, else fma(d, 1 - dampening, b·momentum)       (if momentum != 0)
//   d  = nesterov ? fma(b, momentum, d) : b                                  (if momentum != 0)
//   p  = fma(d, -lr, p)
#pragma once

#include <fsdp/dtype.h>

#include <cstdint>
#include <span>

#include "kernels/count_steps.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// As AdamWSegment (kernels/adamw.h).
struct SgdSegment {
  float* param = nullptr;
  const float* grad = nullptr;
  float* momentum_buffer =
      nullptr;  // may be null if momentum is 0; what it holds at first is not used
  void* low_precision_copy = nullptr;
  DType low_precision_dtype = DType::kBFloat16;  // kBFloat16 or kFloat16
  int64_t numel = 0;
  double lr = 1e-3;
  double weight_decay = 0;
  // In device memory, with this update counted already (count_steps); needed if momentum is not 0.
  const StepCount* step = nullptr;
};

struct SgdOptions {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  const float* grad_scale = nullptr;
  const float* found_inf = nullptr;
};

// Updates all segments. The table is copied by the call; the other pointers are read in stream
// order.
// Errors: InvalidArgument if momentum is not 0 and a segment has no momentum_buffer or no step, if
//   nesterov is asked for without momentum or with dampening, or if a low_precision_dtype is
//   neither bfloat16 nor float16.
void sgd(Stream& stream, std::span<const SgdSegment> segments, const SgdOptions& options);

}  // namespace fsdp::kernels
