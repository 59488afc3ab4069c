#include "kernels/cpu/convert_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"

namespace fsdp::kernels::cpu {
namespace {

// `overwrite` selects one of two instantiations here, so that the inner loop has no branch.
FSDP_TARGET_CLONES
void add_run(const AccumulateRun& run, float scale) {
  visit_pair(run.source, run.source_dtype, run.destination, run.destination_dtype,
             [&](const auto* from, auto* to) FSDP_INLINE_LAMBDA {
               if (run.overwrite) {
                 convert_loop<false>(from, 1, to, run.numel, scale);
               } else {
                 convert_loop<true>(from, 1, to, run.numel, scale);
               }
             });
}

}  // namespace

void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale) {
  run_over_table(stream, runs, [scale](std::span<const AccumulateRun> table) {
    for (const AccumulateRun& run : table) add_run(run, scale);
  });
}

}  // namespace fsdp::kernels::cpu
