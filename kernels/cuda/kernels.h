// The GPU's kernels. Callers use kernels/x.h, which checks what these take for granted. A call
// issues launches to the stream, which must be a GPU's, and returns.
#pragma once

#include "kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

const KernelTable& kernel_table();

// Loads every kernel onto the current device, as CUDA would at its first launch.
// Errors: DeviceError naming the kernel.
void load_kernels();

void adamw(Stream& stream, std::span<const AdamWSegment> segments, const AdamWOptions& options);
void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale);
void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf);
void fill_nan(Stream& stream, std::span<const FillRun> runs);
void fill_zero(Stream& stream, std::span<const FillRun> runs);

// Of each file its part of load_kernels().
void load_adamw();
void load_cast_pack();
void load_count_steps();
void load_fill();

}  // namespace fsdp::kernels::cuda
