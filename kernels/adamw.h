// AdamW on flat fp32 shards: one call updates every segment of a table.
//
// The arithmetic is torch::optim::AdamW's, operation by operation in fp32, fused multiply-adds
// where LibTorch's vector kernels have them:
//   g = grad · grad_scale
//   p = p · (1 - lr·weight_decay)
//   m = fma(g, 1 - beta1, m·beta1)
//   v = fma((1 - beta2)·g, g, v·beta2)
//   p = p + (-lr · c1 · m) / (sqrt(v) / c2 + eps)
// with the corrections of kernels/count_steps.h: c1 = 1 / (1 - beta1^step), c2 = sqrt(1 -
// beta2^step). -lr · c1 and the other scalars are formed in fp64 and rounded once. exp_avg and exp_avg_sq are torch's bit for bit;
// param is too, but for two things: LibTorch divides lr by 1 - beta1^step, with pow's power, which
// can round the step size to the neighbour, and its square root may be MKL's, which can, too. Source:
// Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
#pragma once

#include <fsdp/dtype.h>

#include <cstdint>
#include <span>

#include "kernels/count_steps.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A run of elements with one learning rate, decay and step. All pointers are memory of the
// stream's device and hold `numel` elements, except `step`. No two of them may overlap.
struct AdamWSegment {
  float* param = nullptr;
  const float* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  // The updated param rounded to the nearest even, written in the same pass; null: none.
  void* low_precision_copy = nullptr;
  DType low_precision_dtype = DType::kBFloat16;  // kBFloat16 or kFloat16
  int64_t numel = 0;
  double lr = 1e-3;
  double weight_decay = 0;
  // In device memory, with the options' betas and this update counted already (count_steps);
  // segments may share it. Null: no bias correction.
  const StepCount* step = nullptr;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  const float* grad_scale = nullptr;  // in device memory, e.g. the clip coefficient; null: 1
  const float* found_inf = nullptr;   // in device memory; not zero: nothing is written; null: 0
};

// Updates all segments. The table is copied by the call; grad_scale, found_inf and the counters are
// read in stream order.
// Errors: InvalidArgument if a low_precision_dtype is neither bfloat16 nor float16.
void adamw(Stream& stream, std::span<const AdamWSegment> segments, const AdamWOptions& options);

}  // namespace fsdp::kernels
