// Applies an elementwise optimizer to flat fp32 shards. One call updates all segments of a table by
// one rule.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "kernels/adamw.h"
#include "kernels/average.h"
#include "kernels/count_steps.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "kernels/radam.h"
#include "kernels/sgd.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// All update rules. To add a rule, add its type, with formula and options, to this variant, and its
// arithmetic to kernels/element/. The CPU kernels and the GPU kernels are compiled from these two
// parts.
using UpdateRule = std::variant<AdamW, Sgd, RAdam, Lion, Lamb, Average>;

// A run of elements with one learning rate, decay and step counter. All pointers refer to memory of
// the stream's device. All except `step` point to `numel` elements. No two of them may overlap.
struct UpdateSegment {
  float* param = nullptr;
  const float* grad = nullptr;
  float* moments[2] = {};  // state of each element, in the order that the rule defines
  // The updated param, rounded to the nearest even. The kernel writes this copy in the same pass.
  // Null: no copy.
  void* low_precision_copy = nullptr;
  DType low_precision_dtype = DType::kBFloat16;  // kBFloat16 or kFloat16
  int64_t numel = 0;
  double lr = 1e-3;
  double weight_decay = 0;
  // A counter in device memory, which count_steps has already increased for this update with the
  // rule's betas. Segments may share it. If it is null, the effect depends on the rule: AdamW then
  // has no bias correction, Lion ignores it, and the other rules refuse it, except Sgd without
  // momentum.
  const StepCount* step = nullptr;
  // The factor of Lamb's and Sgd's update, in device memory (trust_ratios.h); null: 1.
  const float* trust_ratio = nullptr;
};

// Scalars in device memory that other kernels computed.
struct UpdateScalars {
  const float* grad_scale = nullptr;  // e.g. the clip coefficient; null: 1
  const float* found_inf = nullptr;   // if it is not zero, nothing is written; null: 0
};

// Updates all segments. The call copies `segments`, so the caller may free it. Scalars and counters
// are read in stream order.
// Errors: InvalidArgument if a low_precision_dtype is neither bfloat16 nor float16, and the
//   errors of the rule.
void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars = {});

}  // namespace fsdp::kernels
