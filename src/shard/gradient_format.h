// How gradients are summed over the ranks, and by what they are divided.
#pragma once

#include <fsdp/options.h>

#include <optional>

#include "comm/communicator.h"

namespace fsdp {

class GradientFormat {
 public:
  // `reduce`: the communicator that reduces over all ranks, of which there are `ranks`.
  // Errors: InvalidArgument for options that cannot be.
  GradientFormat(const Options& options, const Communicator& reduce, int ranks);

  const ReduceOp op;
  // By what gradients are divided before they are summed: gradient_divide_factor, or the ranks
  // where the communicator sums only (Capabilities::averages); else 1.
  const float divide_scale;

  // By what gradients are multiplied when they are captured: what they were scaled by on the way
  // (LossScaler) goes here, too.
  float capture_scale() const { return divide_scale / loss_scale_.value_or(1.0F); }
  bool has_loss_scale() const { return loss_scale_.has_value(); }
  void set_loss_scale(std::optional<float> scale) { loss_scale_ = scale; }

 private:
  std::optional<float> loss_scale_;  // a LossScaler's
};

}  // namespace fsdp
