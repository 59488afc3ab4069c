#include "tests/simulator/tests/kernels/sim_kernels.h"

namespace fsdp::testing::samples {
namespace {

__global__ void sized_by_launch(float* to) {
  extern __shared__ float box[];
  box[threadIdx.x] = 1;
  to[threadIdx.x] = box[threadIdx.x];
}

}  // namespace

void launch_sized_by_launch(float* to, cudaStream_t stream) {
  sized_by_launch<<<1, 32, 128, stream>>>(to);
}

}  // namespace fsdp::testing::samples
