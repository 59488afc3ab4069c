#include "shard/gradient_format.h"

#include <fmt/format.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

// Returns true if gradients are averaged over all ranks.
bool averages(const Options& options) {
  return options.gradient_reduction == GradientReduction::kMean &&
         !options.gradient_divide_factor.has_value();
}

ReduceOp reduce_op_of(const Options& options, const Communicator& reduce) {
  return averages(options) && reduce.capabilities().averages ? ReduceOp::kAvg : ReduceOp::kSum;
}

float divide_scale_of(const Options& options, const Communicator& reduce, int ranks) {
  if (averages(options) && !reduce.capabilities().averages) return 1.0F / static_cast<float>(ranks);
  if (!options.gradient_divide_factor) return 1.0F;
  if (options.gradient_reduction == GradientReduction::kSum) {
    throw InvalidArgument({.what = "gradient_divide_factor is set, but gradient_reduction is kSum",
                           .hint = "set only one of the two: a sum is not divided"});
  }
  if (!(*options.gradient_divide_factor > 0)) {
    throw InvalidArgument({.what = fmt::format("gradient_divide_factor must be positive, got {}",
                                               *options.gradient_divide_factor),
                           .hint = "leave it unset to divide by the world size"});
  }
  return 1.0F / *options.gradient_divide_factor;
}

}  // namespace

GradientFormat::GradientFormat(const Options& options, const Communicator& reduce, int ranks)
    : op(reduce_op_of(options, reduce)), divide_scale(divide_scale_of(options, reduce, ranks)) {}

}  // namespace fsdp
