// GradientFormat defines how gradients are scaled and summed over the ranks.
#pragma once

#include <fsdp/options.h>

#include <optional>

#include "comm/communicator.h"

namespace fsdp {

class GradientFormat {
 public:
  // `reduce` is the communicator that reduces over all `ranks` ranks. Errors: InvalidArgument if
  // gradient_divide_factor is not positive, or if it is set under kSum.
  GradientFormat(const Options& options, const Communicator& reduce, int ranks);

  const ReduceOp op;
  // The factor by which gradients are multiplied before they are summed. It is 1 /
  // gradient_divide_factor if that is set. Otherwise, if gradients are averaged and the
  // communicator cannot average (Capabilities::averages), it is 1 / ranks. Otherwise it is 1.
  const float divide_scale;

  // Returns the factor by which gradients are multiplied at capture. The factor also removes the
  // scale of a LossScaler.
  float capture_scale() const { return divide_scale / loss_scale_.value_or(1.0F); }
  bool has_loss_scale() const { return loss_scale_.has_value(); }
  void set_loss_scale(std::optional<float> scale) { loss_scale_ = scale; }

 private:
  std::optional<float> loss_scale_;  // scale of a LossScaler; empty: no LossScaler
};

}  // namespace fsdp
