#include "kernels/cast_pack.h"

#include "kernels/checks.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale) {
  for (const CastRun& run : runs) {
    if (is_copy(run.source_dtype, run.destination_dtype, scale)) continue;  // for any dtype
    require_elements("cast_pack", run.source_dtype, run.destination_dtype);
  }
  kernels_of(stream).cast_pack(stream, runs, scale);
}

void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale) {
  require_dims("cast_pack_strided", source);
  if (!is_copy(source.dtype, destination_dtype, scale)) {
    require_elements("cast_pack_strided", source.dtype, destination_dtype);
  }
  if (source.numel() == 0) return;
  kernels_of(stream).cast_pack_strided(stream, source, destination, destination_dtype, scale);
}

}  // namespace fsdp::kernels
