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

void count_steps(Stream& stream, std::span<int64_t* const> counters, const float* found_inf) {
  kernels_of(stream).count_steps(stream, counters, found_inf);
}

}  // namespace fsdp::kernels
