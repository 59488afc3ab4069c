#include "kernels/update_blocks.h"

#include "kernels/checks.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void update_blocks(Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
                   const UpdateScalars& scalars) {
  for (const BlockSegment& segment : segments) {
    require_low_precision("update_blocks", segment.elements.low_precision_dtype);
  }
  kernels_of(stream).update_blocks(stream, segments, rule, scalars);
}

}  // namespace fsdp::kernels
