// Small kernels that do right and wrong, for the tests of the simulated GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::testing::kernels {

// to[i] = value.
void launch_fill(float* to, float value, int64_t numel, cudaStream_t stream);
// to[i] = from[i] + by.
void launch_add(float* to, const float* from, float by, int64_t numel, cudaStream_t stream);

}  // namespace fsdp::testing::kernels
