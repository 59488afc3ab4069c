#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/element/digest.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMostRuns = 1300;

struct Runs {
  int32_t count = 0;
  DigestRun each[kMostRuns];
};

__device__ __forceinline__ uint64_t sum_over_lanes(uint64_t sum) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0U, sum, apart);
  return sum;
}

// A block a run: the sum needs neither memory of its own nor atomics. Words are read one by one,
// 256 bytes a warp.
__global__ void __launch_bounds__(kThreads) digest_kernel(const __grid_constant__ Runs runs) {
  const DigestRun& run = runs.each[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const auto* words = static_cast<const uint64_t*>(run.data);
  const int64_t count = run.bytes / 8;
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = thread; i < count; i += kThreads) sum += digest_term(words[i], i);
  __shared__ uint64_t sums[kWarps];
  sum = sum_over_lanes(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread >= 32) return;
  sum = sum_over_lanes(sums[thread]);
  if (thread == 0) *run.digest = sum;
}

}  // namespace

void digest(Stream& stream, std::span<const DigestRun> runs) {
  Runs table;
  for (size_t i = 0; i < runs.size(); ++i) {
    table.each[table.count++] = runs[i];
    if (table.count < kMostRuns && i + 1 < runs.size()) continue;
    launch(stream, "digest", digest_kernel, table.count, kThreads, table);
    table.count = 0;
  }
}

void load_digest() { load("digest", digest_kernel); }

}  // namespace fsdp::kernels::cuda
