#include "kernels/count_steps.h"

#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf) {
  kernels_of(stream).count_steps(stream, counters, betas, found_inf);
}

}  // namespace fsdp::kernels
