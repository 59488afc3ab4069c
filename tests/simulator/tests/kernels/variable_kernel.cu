#include "tests/simulator/tests/kernels/sim_kernels.h"

namespace fsdp::testing::samples {
namespace {

__device__ float table[32];

__global__ void with_variable(float* to) {
  table[threadIdx.x] = to[threadIdx.x];
  to[31 - threadIdx.x] = table[threadIdx.x];
}

}  // namespace

void launch_with_variable(float* to, cudaStream_t stream) {
  with_variable<<<1, 32, 0, stream>>>(to);
}

}  // namespace fsdp::testing::samples
