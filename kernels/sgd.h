// Defines the update rule of SGD with momentum (kernels/update.h).
//
// The arithmetic is that of torch::optim::SGD, operation by operation in fp32:
//   d  = grad · grad_scale
//   d  = fma(p, weight_decay, d)                                    (if weight_decay != 0)
//   d  = d · trust_ratio                                                   (1 without LARS)
//   b  = d at the first update, else fma(d, 1 - dampening, b·momentum)       (if momentum != 0)
//   d  = nesterov ? fma(b, momentum, d) : b                                  (if momentum != 0)
//   p  = fma(d, -lr, p)
#pragma once

#include <string_view>

namespace fsdp::kernels {

// The options of SGD. If momentum is not 0, the momentum buffer is its only moment. The first
// update overwrites the buffer without reading it.
// Errors: InvalidArgument if momentum is not 0 and a segment has no buffer or no step counter.
//   InvalidArgument if nesterov is set although momentum is 0 or dampening is not 0.
struct Sgd {
  static constexpr std::string_view kName = "sgd";
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

}  // namespace fsdp::kernels
