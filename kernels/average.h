// Defines the update of a moving average of weights (kernels/update.h).
//
// `param` of a segment is the average a, and `grad` is the weight p. In fp32:
//   a = fma(p - a, 1 - d, a)
// d is `decay`, or min(decay, (1 + n) / (10 + n)) with warmup, where n is the number of earlier
// updates. 1 - d is computed in fp64 and rounded once.
#pragma once

#include <string_view>

namespace fsdp::kernels {

// The options of an average. It has no moments. The learning rate, the decay of the segment and
// grad_scale are ignored.
// Errors: InvalidArgument if a segment has no step counter.
struct Average {
  static constexpr std::string_view kName = "average";
  double decay = 0.9999;
  bool warmup = true;
};

}  // namespace fsdp::kernels
