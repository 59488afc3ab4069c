// Small kernels that do right and wrong, for the tests of the simulated GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::testing::samples {

// to[i] = value.
void launch_fill(float* to, float value, int64_t numel, cudaStream_t stream);
// to[i] = from[i] + by.
void launch_add(float* to, const float* from, float by, int64_t numel, cudaStream_t stream);
// As fill, by cudaLaunchKernelEx.
void launch_fill_by_configuration(float* to, float value, int64_t numel, cudaStream_t stream);
// As that, with an attribute of the launch.
cudaError_t launch_fill_with(cudaLaunchAttribute* attribute, float* to, float value, int64_t numel,
                             cudaStream_t stream);
cudaError_t attributes_of_add(cudaFuncAttributes* attributes);

// Mirrors 128 floats through shared memory, in two blocks of 64. Each has a way to go wrong.
enum class Bug : uint8_t {
  kNone,
  kNoBarrier,         // between writing shared memory and reading it
  kNoSecondBarrier,   // before shared memory is written again
  kOverTheEnd,        // the last thread writes element 128
  kMisaligned,        // a float4 at element 1
  kCrossBlock,        // all blocks write element 0
  kDivergentShuffle,  // a shuffle of the whole warp that half of it reaches
  kUndefined,         // what nobody has written is read
};
void launch_mirror(float* to, const float* from, Bug bug, cudaStream_t stream);

// A kernel with shared memory of the launch's size; one in a module with a variable; one in an
// object that was compiled with compressed PTX.
void launch_sized_by_launch(float* to, cudaStream_t stream);
void launch_with_variable(float* to, cudaStream_t stream);
void launch_compressed(float* to, cudaStream_t stream);

}  // namespace fsdp::testing::samples
