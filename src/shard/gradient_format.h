// GradientFormat defines how gradients are scaled and summed over the ranks.
#pragma once

#include <fsdp/options.h>

#include <optional>

#include "comm/communicator.h"

namespace fsdp {

class GradientFormat {
 public:
  // `reduce` is the communicator that reduces over all `ranks` ranks.
  // Errors: InvalidArgument for a gradient_divide_factor that is not positive, or under kSum.
  GradientFormat(const Options& options, const Communicator& reduce, int ranks);

  const ReduceOp op;
  // Factor of gradients before they are summed: 1 / gradient_divide_factor; or 1 / ranks if the
  // communicator only sums (Capabilities::averages); else 1.
  const float divide_scale;

  // Returns the factor by which gradients are multiplied at capture. It also undoes the scale of a
  // LossScaler.
  float capture_scale() const { return divide_scale / loss_scale_.value_or(1.0F); }
  bool has_loss_scale() const { return loss_scale_.has_value(); }
  void set_loss_scale(std::optional<float> scale) { loss_scale_ = scale; }

 private:
  std::optional<float> loss_scale_;  // of a LossScaler
};

}  // namespace fsdp
