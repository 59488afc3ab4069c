#include <cstring>

#include "kernels/cpu/convert_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"

namespace fsdp::kernels::cpu {
namespace {

FSDP_TARGET_CLONES
void cast_run(const CastRun& run, float scale) {
  visit_pair(run.source, run.source_dtype, run.destination, run.destination_dtype,
             [&](const auto* from, auto* to)
                 FSDP_INLINE_LAMBDA { convert_loop<false>(from, 1, to, run.numel, scale); });
}

}  // namespace

void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale) {
  run_over_table(stream, runs, [scale](std::span<const CastRun> table) {
    for (const CastRun& run : table) {
      // memcpy is undefined for null pointers, which an empty run may have. memcpy is also
      // undefined if the source is the destination.
      if (run.numel == 0) continue;
      if (!is_copy(run.source_dtype, run.destination_dtype, scale)) {
        cast_run(run, scale);
      } else if (run.source != run.destination) {
        const int64_t bytes = run.numel * size_of(run.source_dtype);
        std::memcpy(run.destination, run.source, static_cast<size_t>(bytes));
      }
    }
  });
}

}  // namespace fsdp::kernels::cpu
