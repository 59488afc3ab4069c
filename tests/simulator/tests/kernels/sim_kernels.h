// Small correct and wrong kernels for the tests of the simulated GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::testing::samples {

// Launches to[i] = value.
void launch_fill(float* to, float value, int64_t numel, cudaStream_t stream);
// Launches to[i] = from[i] + by.
void launch_add(float* to, const float* from, float by, int64_t numel, cudaStream_t stream);
// Launches fill through cudaLaunchKernelEx.
void launch_fill_by_configuration(float* to, float value, int64_t numel, cudaStream_t stream);
// Launches fill through cudaLaunchKernelEx with an attribute.
cudaError_t launch_fill_with(cudaLaunchAttribute* attribute, float* to, float value, int64_t numel,
                             cudaStream_t stream);
cudaError_t attributes_of_add(cudaFuncAttributes* attributes);

// Reverses 128 floats through shared memory, in two blocks of 64. Each value is an error that the
// kernel makes.
enum class Bug : uint8_t {
  kNone,
  kNoBarrier,         // missing between the write and the read of shared memory
  kNoSecondBarrier,   // missing before the second write of shared memory
  kOverTheEnd,        // the last thread writes element 128
  kMisaligned,        // a float4 at element 1
  kCrossBlock,        // all blocks write element 0
  kDivergentShuffle,  // a shuffle of the whole warp that only half of it reaches
  kUndefined,         // a read of unwritten memory
};
void launch_mirror(float* to, const float* from, Bug bug, cudaStream_t stream);

// Launch a kernel whose shared memory is sized by the launch, a kernel in a module with a variable,
// and a kernel in an object with compressed PTX.
void launch_sized_by_launch(float* to, cudaStream_t stream);
void launch_with_variable(float* to, cudaStream_t stream);
void launch_compressed(float* to, cudaStream_t stream);

}  // namespace fsdp::testing::samples
