// Applies an elementwise optimizer to flat fp32 shards: one call updates every segment of a table
// by one rule.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "kernels/adamw.h"
#include "kernels/count_steps.h"
#include "kernels/sgd.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// All rules. To add one, add a type here with its formula and options, and its arithmetic in
// kernels/element/. CPU and GPU build their kernels from both.
using UpdateRule = std::variant<AdamW, Sgd>;

// A run of elements with one learning rate, decay and step. All pointers refer to memory of the
// stream's device and, except `step`, to `numel` elements. No two of them may overlap.
struct UpdateSegment {
  float* param = nullptr;
  const float* grad = nullptr;
  float* moments[2] = {};  // the rule's state of each element, in the rule's order
  // The updated param, rounded to the nearest even and written in the same pass; null: none.
  void* low_precision_copy = nullptr;
  DType low_precision_dtype = DType::kBFloat16;  // kBFloat16 or kFloat16
  int64_t numel = 0;
  double lr = 1e-3;
  double weight_decay = 0;
  // In device memory. count_steps has already counted this update, with the rule's betas. Segments
  // may share it. Null: as the rule defines.
  const StepCount* step = nullptr;
};

// Scalars in device memory that other kernels computed.
struct UpdateScalars {
  const float* grad_scale = nullptr;  // e.g. the clip coefficient; null: 1
  const float* found_inf = nullptr;   // not zero: nothing is written; null: 0
};

// Updates all segments. The call copies the table; scalars and counters are read in stream order.
// Errors: InvalidArgument if a low_precision_dtype is neither bfloat16 nor float16, and as the
//   rule's comment lists.
void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars = {});

}  // namespace fsdp::kernels
