#include "kernels/grad_norm.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs) {
  kernels_of(stream).grad_norm(stream, segments, type, outputs);
}

int64_t norm_scratch_bytes(const Stream& stream, std::span<const GradSegment> segments) {
  return kernels_of(stream).norm_scratch_bytes(segments);
}

void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs) {
  if (!(max_norm >= 0)) {
    throw InvalidArgument(
        {.what = fmt::format("clip_coefficient: max_norm is {}, expected 0 or more", max_norm),
         .hint = "pass 0 or more; pass infinity to clip nothing"});
  }
  kernels_of(stream).clip_coefficient(stream, reduced, type, max_norm, outputs);
}

}  // namespace fsdp::kernels
