// The update of an elementwise optimizer on flat fp32 shards: one call updates every segment of a
// table by one rule.
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

// The rules that there are. Another one is a type here with its formula and options, and its
// arithmetic in kernels/element/: CPU and GPU make their kernels of these.
using UpdateRule = std::variant<AdamW, Sgd>;

// A run of elements with one learning rate, decay and step. All pointers are memory of the stream's
// device and hold `numel` elements, except `step`. No two of them may overlap.
struct UpdateSegment {
  float* param = nullptr;
  const float* grad = nullptr;
  float* moments[2] = {};  // what the rule keeps of each element, in its order
  // The updated param rounded to the nearest even, written in the same pass; null: none.
  void* low_precision_copy = nullptr;
  DType low_precision_dtype = DType::kBFloat16;  // kBFloat16 or kFloat16
  int64_t numel = 0;
  double lr = 1e-3;
  double weight_decay = 0;
  // In device memory, with this update counted already, and with the rule's betas (count_steps);
  // segments may share it. Null: the rule says what that means.
  const StepCount* step = nullptr;
};

// Decisions of other kernels, in device memory.
struct UpdateScalars {
  const float* grad_scale = nullptr;  // e.g. the clip coefficient; null: 1
  const float* found_inf = nullptr;   // not zero: nothing is written; null: 0
};

// Updates all segments. The table is copied by the call; scalars and counters are read in stream
// order.
// Errors: InvalidArgument if a low_precision_dtype is neither bfloat16 nor float16, and as the rule
//   says.
void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars = {});

}  // namespace fsdp::kernels
