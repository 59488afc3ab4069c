#include "tests/simulator/tests/kernels/sim_kernels.h"

namespace fsdp::testing::samples {
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

__global__ void mirror(float* to, const float* from, Bug bug) {
  __shared__ float box[kThreads];
  const int me = static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  box[me] = from[first + me];
  if (bug != Bug::kNoBarrier) __syncthreads();
  float value = box[kThreads - 1 - me];
  if (bug == Bug::kNoSecondBarrier) box[me] = value;
  if (bug == Bug::kMisaligned) {
    const float4 four = *reinterpret_cast<const float4*>(from + 1);
    value += four.x + four.y + four.z + four.w;
  }
  if (bug == Bug::kUndefined) value += to[first + me];
  if (bug == Bug::kDivergentShuffle && me % 32 < 16) {
    value += __shfl_down_sync(0xffffffffU, value, 1);
  }
  to[first + me] = value;
  if (bug == Bug::kOverTheEnd && first + me == 127) to[128] = value;
  if (bug == Bug::kCrossBlock && me == 0) to[0] = value;
}

cudaLaunchConfig_t configuration_of(int64_t numel, cudaStream_t stream) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = blocks(numel);
  configuration.blockDim = kThreads;
  configuration.stream = stream;
  return configuration;
}

}  // namespace

void launch_fill(float* to, float value, int64_t numel, cudaStream_t stream) {
  fill<<<blocks(numel), kThreads, 0, stream>>>(to, value, numel);
}

void launch_add(float* to, const float* from, float by, int64_t numel, cudaStream_t stream) {
  add<<<blocks(numel), kThreads, 0, stream>>>(to, from, by, numel);
}

void launch_fill_by_configuration(float* to, float value, int64_t numel, cudaStream_t stream) {
  const cudaLaunchConfig_t configuration = configuration_of(numel, stream);
  static_cast<void>(cudaLaunchKernelEx(&configuration, fill<float>, to, value, numel));
}

cudaError_t launch_fill_with(cudaLaunchAttribute* attribute, float* to, float value, int64_t numel,
                             cudaStream_t stream) {
  cudaLaunchConfig_t configuration = configuration_of(numel, stream);
  configuration.attrs = attribute;
  configuration.numAttrs = 1;
  return cudaLaunchKernelEx(&configuration, fill<float>, to, value, numel);
}

cudaError_t attributes_of_add(cudaFuncAttributes* attributes) {
  return cudaFuncGetAttributes(attributes, add);
}

void launch_mirror(float* to, const float* from, Bug bug, cudaStream_t stream) {
  mirror<<<2, kThreads, 0, stream>>>(to, from, bug);
}

}  // namespace fsdp::testing::samples
