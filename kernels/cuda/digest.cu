#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/digest.h"
#include "kernels/element/digest.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kWarps = kBlockThreads / 32;

// A run in the form that the kernels read.
struct Segment {
  const uint64_t* words;
  uint64_t* parts;
  uint64_t* digest;
  int64_t count;
  int32_t blocks;  // thread blocks; each computes one part
};

// Returns in each lane the sum over its group of `lanes` lanes. All lanes of the warp must call it.
__device__ __forceinline__ uint64_t sum_over_lanes(uint64_t sum, int lanes) {
#pragma unroll
  for (int apart = lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0U, sum, apart);
  return sum;
}

// Returns the sum over the thread block; only thread 0 gets it. A kernel must call it only once: a
// second call could overwrite `sums` before the first warp has read it.
__device__ __forceinline__ uint64_t sum_over_block(uint64_t sum) {
  __shared__ uint64_t sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  sum = sum_over_lanes(sum, 32);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  return thread < 32 ? sum_over_lanes(sums[thread % kWarps], kWarps) : 0;
}

// Writes the sums of the parts. A warp reads 32 consecutive words, 256 bytes, at a time.
template <int kMost>
__global__ void __launch_bounds__(kBlockThreads)
    digest_kernel(const __grid_constant__ SegmentTable<Segment, kMost> table) {
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  const int64_t count = segment.count, step = int64_t{segment.blocks} * kBlockThreads;
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = place.block * kBlockThreads + threadIdx.x; i < count; i += step) {
    sum += digest_term(segment.words[i], i);
  }
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) segment.parts[place.block] = sum;
}

// Adds the parts. Each run has one thread block. Atomics would make this launch unnecessary, but
// would need a launch that writes zeros first.
template <int kMost>
__global__ void __launch_bounds__(kBlockThreads)
    digest_sum_kernel(const __grid_constant__ SegmentTable<Segment, kMost> table) {
  const Segment& segment = table.segments[place_of_block(table).segment];
  uint64_t sum = 0;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < segment.blocks; i += kBlockThreads) {
    sum += segment.parts[i];
  }
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) *segment.digest = sum;
}

constexpr TableKernel<Segment> kParts{digest_kernel<kManySegments<Segment>>,
                                      digest_kernel<kFewSegments>};
constexpr TableKernel<Segment> kSums{digest_sum_kernel<kManySegments<Segment>>,
                                     digest_sum_kernel<kFewSegments>};

Segment segment_of(const DigestRun& run) {
  const int64_t count = run.bytes / static_cast<int64_t>(sizeof(uint64_t));
  return {static_cast<const uint64_t*>(run.data), run.parts, run.digest, count,
          static_cast<int32_t>(std::min(blocks_for(count), kDigestParts))};
}

}  // namespace

// The parts of all runs are issued before the first sum. Launches of a stream run in order, so each
// sum reads complete parts.
void digest(Stream& stream, std::span<const DigestRun> runs) {
  TableLaunch<Segment> parts(stream, "digest", kParts), sums(stream, "digest's sum", kSums);
  for (const DigestRun& run : runs) {
    const Segment segment = segment_of(run);
    parts.add(segment, segment.blocks);
  }
  parts.issue();
  for (const DigestRun& run : runs) sums.add(segment_of(run), 1);
  sums.issue();
}

void load_digest() {
  kParts.load("digest");
  kSums.load("digest's sum");
}

}  // namespace fsdp::kernels::cuda
