#include "kernels/sgd.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/checks.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void sgd(Stream& stream, std::span<const SgdSegment> segments, const SgdOptions& options) {
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw InvalidArgument({.what = fmt::format("sgd: nesterov with momentum {} and dampening {}",
                                               options.momentum, options.dampening),
                           .hint = "nesterov needs a momentum and no dampening"});
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    require_low_precision("sgd", segments[i].low_precision_dtype);
    if (options.momentum == 0 || segments[i].numel == 0) continue;
    if (segments[i].momentum_buffer == nullptr || segments[i].step == nullptr) {
      throw InvalidArgument(
          {.what = fmt::format("sgd: segment {} has no {}", i,
                               segments[i].step == nullptr ? "step" : "momentum_buffer"),
           .hint = "momentum needs both: the first update starts the buffer"});
    }
  }
  kernels_of(stream).sgd(stream, segments, options);
}

}  // namespace fsdp::kernels
