#include "kernels/element/count_steps.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"

namespace fsdp::kernels::cpu {

void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf) {
  run_over_table(stream, counters, [betas, found_inf](std::span<StepCount* const> table) {
    if (found_inf != nullptr && *found_inf != 0.0F) return;
    for (StepCount* counter : table) *counter = count_at(counter->step + 1, betas);
  });
}

}  // namespace fsdp::kernels::cpu
