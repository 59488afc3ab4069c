#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/element/grad_norm.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr unsigned kAllLanes = ~0U;
constexpr int kNowhere = 0x7fffffff;  // means "no index"; above every index
// The number of nodes that one thread block joins. The number is a power of two and the nodes are
// aligned to it, so they form a whole subtree. The nodes occupy 32 KiB of shared memory. A kernel
// gets up to 48 KiB without a special request.
constexpr int kJoined = 2048;

// A node of the tree that reduces the results of all blocks (kernels/grad_norm.h).
struct alignas(16) Node {
  double power;
  double first_non_finite;  // as in NormOutputs
};

// A segment in the form that the kernel reads.
struct Segment {
  const float* grad;
  int64_t numel;
  int64_t position;
  int64_t first_block;  // index in the list of all segments' blocks
};

// One of the 8 sums of a block, or its largest |x|. Without the sign bit, the bits of floats
// compare as integers in the order of their values. Infinity is above all numbers and NaN is above
// infinity. So the maximum is computed on integers.
template <NormType kType>
using Partial = std::conditional_t<kType == NormType::kInf, int32_t, double>;

// Adds the term of x. The square of a float is exact in float64, so __fma_rn gives the same bits as
// the CPU's product and sum.
template <NormType kType>
__device__ __forceinline__ void add_term(Partial<kType>& partial, float x) {
  if constexpr (kType == NormType::kInf) {
    const auto magnitude = static_cast<int32_t>(bits_as<uint32_t>(x) & 0x7fffffffU);
    partial = magnitude > partial ? magnitude : partial;
  } else if constexpr (kType == NormType::kTwo) {
    const double wide = x;
    partial = __fma_rn(wide, wide, partial);
  } else {
    partial += fabs(static_cast<double>(x));
  }
}

// Returns the result of a block in each of the 8 lanes that share the block. The contract in
// kernels/grad_norm.h defines the order of the shuffles.
template <NormType kType>
__device__ __forceinline__ double block_result(Partial<kType> partial) {
#pragma unroll
  for (int apart = 4; apart > 0; apart /= 2) {
    const Partial<kType> other = __shfl_xor_sync(kAllLanes, partial, apart);
    if constexpr (kType == NormType::kInf) {
      partial = other > partial ? other : partial;
    } else {
      partial += other;
    }
  }
  if constexpr (kType == NormType::kInf) return bits_as<float>(static_cast<uint32_t>(partial));
  return partial;
}

// Returns the index of the first non-finite element in the block. It reads the block again, because
// non-finite elements are rare. All lanes of the warp must call it, because all take part in the
// shuffles.
__device__ int first_in_block(const Segment& segment, int64_t norm_block, int thread, int numel,
                              bool is_bad) {
  int first = kNowhere;
  if (is_bad) {
#pragma unroll 1
    for (int i = thread % 8; i < numel; i += 8) {
      if (is_finite(segment.grad[norm_block * kNormBlock + i])) continue;
      first = i;
      break;
    }
  }
  __syncwarp();
#pragma unroll
  for (int apart = 4; apart > 0; apart /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, first, apart);
    first = other < first ? other : first;
  }
  return first;
}

// Writes the results of blocks. All lanes must reach the shuffles, even lanes without an element.
// So a lane beyond the end of the segment has a block of 0 elements and does not return early.
template <NormType kType>
__global__ void __launch_bounds__(kBlockThreads)
    blocks_kernel(const __grid_constant__ ManySegments<Segment> table, Node* nodes) {
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t norm_block = norm_block_of(place.block, thread);
  const int64_t left = segment.numel - norm_block * kNormBlock;
  const int numel = left >= kNormBlock ? static_cast<int>(kNormBlock)
                    : left > 0         ? static_cast<int>(left)
                                       : 0;
  Partial<kType> partial = 0;
  if (numel == kNormBlock) {
#pragma unroll 8
    for (int iteration = 0; iteration < kNormBlock / kNormSums; ++iteration) {
      add_term<kType>(partial, segment.grad[norm_element_of(norm_block, thread, iteration)]);
    }
  } else {
#pragma unroll 1
    for (int iteration = 0; iteration * kNormSums + thread % 8 < numel; ++iteration) {
      add_term<kType>(partial, segment.grad[norm_element_of(norm_block, thread, iteration)]);
    }
  }
  __syncwarp();  // the blocks of a warp may have taken different branches above
  const double power = block_result<kType>(partial);
  double first = 0;
  // Squares and sums of finite floats stay in the range of double, so a non-finite power means a
  // non-finite element.
  const bool is_bad = !is_finite(power);
  if (__any_sync(kAllLanes, is_bad)) {
    const int index = first_in_block(segment, norm_block, thread, numel, is_bad);
    if (is_bad) {
      first = static_cast<double>(1 + segment.position + norm_block * kNormBlock + index);
    }
  }
  if (thread % 8 == 0 && numel > 0) nodes[segment.first_block + norm_block] = {power, first};
}

__device__ __forceinline__ Node joined(NormType type, const Node& left, const Node& right) {
  return {join_powers(type, left.power, right.power),
          left.first_non_finite != 0 ? left.first_non_finite : right.first_non_finite};
}

// Joins kJoined nodes in each thread block to one node of the next level. Only the last launch has
// output pointers, to which it writes the results. Missing nodes count as zeros, which change no
// bit because no power is -0.
__global__ void __launch_bounds__(kBlockThreads)
    join_kernel(const Node* nodes, int64_t count, NormType type, Node* next, GradNorm* norm,
                double* first_non_finite) {
  __shared__ Node tree[kJoined];
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < kJoined; i += kBlockThreads) {
    const int64_t at = int64_t{blockIdx.x} * kJoined + i;
    tree[i] = at < count ? nodes[at] : Node{0, 0};
  }
  __syncthreads();
  // Nodes are joined in place: node i of the new level replaces its left child, at index 2 · i ·
  // apart.
#pragma unroll 1
  for (int apart = 1; apart < kJoined; apart *= 2) {
#pragma unroll 1
    for (int i = thread; i < kJoined / 2 / apart; i += kBlockThreads) {
      tree[2 * i * apart] = joined(type, tree[2 * i * apart], tree[(2 * i + 1) * apart]);
    }
    __syncthreads();
  }
  if (thread != 0) return;
  const Node top = tree[0];
  if (norm == nullptr) {
    next[blockIdx.x] = top;
    return;
  }
  *norm = {.power = one_nan(top.power), .non_finite = top.first_non_finite != 0 ? 1.0 : 0.0};
  if (first_non_finite != nullptr) *first_non_finite = top.first_non_finite;
}

__global__ void clip_kernel(const GradNorm* reduced, NormType type, double max_norm,
                            const ClipOutputs outputs) {
  clip_element(*reduced, type, max_norm, outputs);
}

// Returns the number of blocks in a segment, as kernels/grad_norm.h defines it.
int64_t norm_blocks(const GradSegment& segment) {
  return (segment.numel + kNormBlock - 1) / kNormBlock;
}
int64_t next_level(int64_t count) { return (count + kJoined - 1) / kJoined; }

auto blocks_kernel_for(NormType type) {
  switch (type) {
    case NormType::kOne:
      return blocks_kernel<NormType::kOne>;
    case NormType::kTwo:
      return blocks_kernel<NormType::kTwo>;
    default:
      return blocks_kernel<NormType::kInf>;
  }
}

}  // namespace

// Counts the nodes of all levels except the last, which is written to the outputs. Each level has
// its own memory, because the blocks of a launch run in any order.
int64_t norm_scratch_bytes(std::span<const GradSegment> segments) {
  int64_t count = 0;
  for (const GradSegment& each : segments) count += norm_blocks(each);
  int64_t nodes = count;
  for (; count > kJoined; nodes += count) count = next_level(count);
  return nodes * static_cast<int64_t>(sizeof(Node));
}

void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs) {
  auto* nodes = static_cast<Node*>(outputs.scratch);
  int64_t count = 0;
  TableLaunch<Segment, Node*> launches(stream, "grad_norm", {blocks_kernel_for(type)}, nodes);
  for (const GradSegment& each : segments) {
    launches.add({each.grad, each.numel, each.position, count},
                 (norm_blocks(each) + kNormBlocksTogether - 1) / kNormBlocksTogether);
    count += norm_blocks(each);
  }
  launches.issue();
  // Launches of a stream run in order, so a level is complete before the next one reads it.
  const auto join = [&](int64_t blocks, Node* next, const NormOutputs& to) {
    launch(stream, "grad_norm's tree", join_kernel, blocks, kBlockThreads,
           static_cast<const Node*>(nodes), count, type, next, to.norm, to.first_non_finite);
  };
  while (count > kJoined) {
    const int64_t next = next_level(count);
    join(next, nodes + count, {});
    nodes += count;
    count = next;
  }
  join(1, nullptr, outputs);  // writes zeros if there are no nodes
}

void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs) {
  launch(stream, "clip_coefficient", clip_kernel, 1, 1, reduced, type, max_norm, outputs);
}

void load_grad_norm() {
  for (const NormType each : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
    load("grad_norm", blocks_kernel_for(each));
  }
  load("grad_norm's tree", join_kernel);
  load("clip_coefficient", clip_kernel);
}

}  // namespace fsdp::kernels::cuda
