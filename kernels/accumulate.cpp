#include "kernels/accumulate.h"

#include "kernels/checks.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale) {
  for (const AccumulateRun& run : runs) {
    require_elements("accumulate", run.source_dtype, run.destination_dtype);
  }
  kernels_of(stream).accumulate(stream, runs, scale);
}

void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale) {
  require_dims("accumulate_strided", source);
  require_elements("accumulate_strided", source.dtype, destination_dtype);
  if (source.numel() == 0) return;  // the kernels require at least one element
  kernels_of(stream).accumulate_strided(stream, source, destination, destination_dtype, scale);
}

}  // namespace fsdp::kernels
