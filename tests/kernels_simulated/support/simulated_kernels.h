// The GPU's kernels for memory and streams of the host: each call is brought to the GPU of the test
// (kernel_gpu.h), run there, and what it has written fetched.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Streams are the host's, and their kernels those of kernels/cuda.
const Device& simulated_device();

// What the calls that come run with: the order of blocks and warps, and of what is queued.
void set_schedule(uint32_t seed);
// The launches of the last call, where the GPU is simulated.
const std::vector<testing::sim::LaunchRecord>& last_launches();

}  // namespace fsdp::test
