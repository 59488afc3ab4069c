#include "kernels/adamw.h"

#include "kernels/checks.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void adamw(Stream& stream, std::span<const AdamWSegment> segments, const AdamWOptions& options) {
  for (const AdamWSegment& segment : segments) {
    require_low_precision("adamw", segment.low_precision_dtype);
  }
  kernels_of(stream).adamw(stream, segments, options);
}

}  // namespace fsdp::kernels
