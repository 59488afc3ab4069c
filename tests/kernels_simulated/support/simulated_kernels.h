// The GPU's kernels for streams and memory of the host. Each call copies its memory to the GPU of
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

// Sets the seed of later calls. The seed selects the order of blocks, warps and queued work.
void set_schedule(uint32_t seed);
// Returns the launches of the last call if the GPU is simulated, and otherwise none.
const std::vector<testing::sim::LaunchRecord>& last_launches();

}  // namespace fsdp::test
