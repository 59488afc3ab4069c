// AdamW on flat fp32 shards: one call updates every segment of a table.
//
// The arithmetic is torch::optim::AdamW's, operation by operation in fp32, fused multiply-adds
// where LibTorch's vector kernels have them:
//   g = grad · grad_scale
//   p = p · (1 - lr·weight_decay)
//   m = fma(g, 1 - beta1, m·beta1)
//   v = fma((1 - beta2)·g, g, v·beta2)
//   p = p + (-lr / (1 - beta1^step) · m) / (sqrt(v) / sqrt(1 - beta2^step) + eps)
// Scalars are formed in fp64 and rounded once. exp_avg and exp_avg_sq are torch's bit for bit;
// param is too, but for LibTorch's square root, which MKL may round to the other neighbour. Source:
// Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
#pragma once

#include <fsdp/dtype.h>

#include <cstdint>
#include <span>

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
  // One counter in device memory: the number of this update, counted from 1 (see count_steps);
  // segments may share it. Null: no bias correction.
  const int64_t* step = nullptr;
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

// Adds 1 to each counter, unless found_inf (may be null) points at something that is not zero.
// Issued before the update on the same stream, so that a skipped update is not counted although the
// host does not know of it. Each counter is listed once.
void count_steps(Stream& stream, std::span<int64_t* const> counters, const float* found_inf);

}  // namespace fsdp::kernels
