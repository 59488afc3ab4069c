#include "tests/sim/kernels/sim_kernels.h"

namespace fsdp::testing::kernels {
namespace {

constexpr int kThreads = 64;

__device__ int64_t element() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
unsigned blocks(int64_t numel) { return static_cast<unsigned>((numel + kThreads - 1) / kThreads); }

template <class T>
__global__ void fill(T* to, T value, int64_t numel) {
  if (element() < numel) to[element()] = value;
}

__global__ void add(float* to, const float* from, float by, int64_t numel) {
  if (element() < numel) to[element()] = from[element()] + by;
}

}  // namespace

void launch_fill(float* to, float value, int64_t numel, cudaStream_t stream) {
  fill<<<blocks(numel), kThreads, 0, stream>>>(to, value, numel);
}

void launch_add(float* to, const float* from, float by, int64_t numel, cudaStream_t stream) {
  add<<<blocks(numel), kThreads, 0, stream>>>(to, from, by, numel);
}

}  // namespace fsdp::testing::kernels
