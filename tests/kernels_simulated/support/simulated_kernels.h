// The GPU's kernels for memory and streams of the host: each call copies its memory to the GPU of
// the test (kernel_gpu.h), runs there, and copies the results back.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Returns a device with the host's streams and the kernels of kernels/cuda.
const Device& simulated_device();

// Sets the seed of later calls: it draws the order of blocks and warps, and of queued work.
void set_schedule(uint32_t seed);
// Returns the launches of the last call, if the GPU is simulated.
const std::vector<testing::sim::LaunchRecord>& last_launches();

}  // namespace fsdp::test
