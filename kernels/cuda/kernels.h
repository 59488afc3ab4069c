// The GPU's kernels. Callers use kernels/x.h, which checks what these take for granted.
#pragma once

#include "kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

const KernelTable& kernel_table();

// Loads every kernel onto the current device, as CUDA would at its first launch.
// Errors: DeviceError naming the kernel.
void load_kernels();

}  // namespace fsdp::kernels::cuda
