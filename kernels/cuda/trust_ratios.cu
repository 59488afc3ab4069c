#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/trust_ratios.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr unsigned kEveryLane = ~0U;
constexpr int kQuad = kVectorBytes / sizeof(float);
constexpr int kWarps = kBlockThreads / 32;
// The number of quads that a thread processes, and the number of results of warps in a block.
constexpr int kRounds = kBlockNumel / (kBlockThreads * kQuad);
constexpr int kWarpResults = kWarps * kRounds;
static_assert(kWarpResults == 32);  // one warp joins them
// The number of blocks that a thread block joins at a time. A node may have kJoinedBlocks² blocks.
constexpr int kJoinedBlocks = 1024;

// A node in the form that the kernel reads.
struct Summed {
  const float* param;
  const float* grad;
  const float* moments[2];
  const StepCount* step;
  double lr;
  int64_t numel;
  SquareSums* blocks;
  float decay;
  bool vectors;  // true if all arrays are aligned to vectors
};

// Returns the root over a warp's lanes in every lane. Lane l has leaf l.
__device__ __forceinline__ SquareSums over_lanes(SquareSums sums) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    sums = joined(sums, {__shfl_xor_sync(kEveryLane, sums.param, apart),
                         __shfl_xor_sync(kEveryLane, sums.update, apart)});
  }
  return sums;
}

__device__ __forceinline__ void load_quad(const float* from, int64_t i, const Summed& segment,
                                          float (&to)[kQuad]) {
  if (segment.vectors && i + kQuad <= segment.numel) {
    load_vector(from + i, to);
    return;
  }
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    if (i + j < segment.numel) to[j] = from[i + j];
  }
}

// Writes the sums of a block. A round covers 1,024 consecutive elements, and a warp's lanes 128 of
// them. So the results of the rounds and warps are the 32 nodes of 128 elements, in their order.
template <class Terms>
__global__ void __launch_bounds__(kBlockThreads)
    squares_kernel(const __grid_constant__ ManySegments<Summed> table,
                   const typename Terms::Update::Scalars common, const float* grad_scale) {
  using Update = typename Terms::Update;
  __shared__ SquareSums of_warps[kWarpResults];
  const BlockPlace place = place_of_block(table);
  const Summed& segment = table.segments[place.segment];
  typename Update::Scalars scalars = common;
  scalars.decay = segment.decay;
  if (grad_scale != nullptr) scalars.grad_scale = *grad_scale;
  Update::read_scalars(scalars, segment.lr, segment.step);
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = element_of(place.block, thread, round, kQuad);
    float p[kQuad] = {}, g[kQuad] = {}, a[kQuad] = {}, b[kQuad] = {};
    load_quad(segment.param, i, segment, p);
    load_quad(segment.grad, i, segment, g);
    if constexpr (Update::kMoments > 0) {
      load_quad(segment.moments[0], i, segment, a);
      load_quad(segment.moments[1], i, segment, b);
    }
    SquareSums squares[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const double param = p[j];
      // A missing element is a zero, although its update could be 0 / 0.
      const double update =
          i + j < segment.numel ? Terms::of_update(p[j], g[j], a[j], b[j], scalars) : 0.0F;
      squares[j] = {param * param, update * update};
    }
    const SquareSums sums =
        over_lanes(joined(joined(squares[0], squares[1]), joined(squares[2], squares[3])));
    if (thread % 32 == 0) of_warps[round * kWarps + thread / 32] = sums;
  }
  __syncthreads();
  if (thread >= 32) return;
  const SquareSums sums = over_lanes(of_warps[thread]);
  if (thread == 0) segment.blocks[place.block] = sums;
}

// The blocks of a node.
struct Joined {
  const SquareSums* blocks;
  SquareSums* sums;
  int64_t count;
};

// Reduces a tree in place to tree[0]. All threads of the block must call it.
__device__ __forceinline__ void reduce_tree(SquareSums* tree, int thread) {
#pragma unroll 1
  for (int apart = 1; apart < kJoinedBlocks; apart *= 2) {
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < kJoinedBlocks / 2 / apart; i += kBlockThreads) {
      tree[2 * i * apart] = joined(tree[2 * i * apart], tree[(2 * i + 1) * apart]);
    }
  }
  __syncthreads();
}

// Joins the blocks of one node in each thread block.
__global__ void __launch_bounds__(kBlockThreads)
    join_blocks_kernel(const __grid_constant__ ManySegments<Joined> table) {
  __shared__ SquareSums tree[kJoinedBlocks];
  __shared__ SquareSums tops[kJoinedBlocks];
  const Joined& node = table.segments[place_of_block(table).segment];
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < kJoinedBlocks; i += kBlockThreads) tops[i] = {0, 0};
#pragma unroll 1
  for (int64_t begin = 0; begin < node.count; begin += kJoinedBlocks) {
#pragma unroll 1
    for (int i = thread; i < kJoinedBlocks; i += kBlockThreads) {
      tree[i] = begin + i < node.count ? node.blocks[begin + i] : SquareSums{0, 0};
    }
    reduce_tree(tree, thread);
    if (thread == 0) tops[begin / kJoinedBlocks] = tree[0];
    __syncthreads();
  }
  reduce_tree(tops, thread);
  if (thread == 0) *node.sums = tops[0];
}

// A table of parameters, passed by value. Each parameter needs one thread.
constexpr int kMostTrusted = 1000;
struct Trusted {
  int32_t count = 0;
  TrustParameter each[kMostTrusted];
};
static_assert(sizeof(Trusted) < kParameterBytes);

__global__ void __launch_bounds__(kBlockThreads)
    trust_kernel(const __grid_constant__ Trusted table, SquareSums* sums,
                 const TrustFormula formula) {
  const int i = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (i >= table.count) return;
  *table.each[i].ratio = trust_ratio_of(table.each[i], sums, formula);
}

template <class Terms>
TableKernel<Summed, typename Terms::Update::Scalars, const float*> squares_kernel_of() {
  return {.many = &squares_kernel<Terms>};
}

template <class Terms>
void issue_squares(Stream& stream, std::span<const SumNode> nodes,
                   const typename Terms::Update::Rule& rule, const float* grad_scale,
                   SquareSums* blocks) {
  using Update = typename Terms::Update;
  TableLaunch<Summed, typename Update::Scalars, const float*> launches(
      stream, "sum_squares", squares_kernel_of<Terms>(), Update::host_scalars(rule), grad_scale);
  for (const SumNode& node : nodes) {
    const UpdateSegment& from = node.elements;
    const bool reads = Update::kMoments > 0;
    const float* const first = reads ? from.moments[0] : nullptr;
    const float* const second = reads ? from.moments[1] : nullptr;
    const Stretch stretch =
        stretch_of(from.numel, kQuad, {{from.param, 4}, {from.grad, 4}, {first, 4}, {second, 4}});
    launches.add({.param = from.param,
                  .grad = from.grad,
                  .moments = {first, second},
                  .step = from.step,
                  .lr = from.lr,
                  .numel = from.numel,
                  .blocks = blocks,
                  .decay = Update::decay(from.lr, from.weight_decay),
                  .vectors = stretch.skew == 0},
                 blocks_for(from.numel));
    blocks += blocks_for(from.numel);
  }
  launches.issue();
}

}  // namespace

void sum_squares(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
                 const float* grad_scale, void* scratch) {
  auto* blocks = static_cast<SquareSums*>(scratch);
  std::visit(
      [&](const auto& of) {
        if constexpr (kHasTerms<std::remove_cvref_t<decltype(of)>>) {
          issue_squares<decltype(terms_of(of))>(stream, nodes, of, grad_scale, blocks);
        }
      },
      rule);
  TableLaunch<Joined> joins(stream, "sum_squares's tree", {.many = &join_blocks_kernel});
  for (const SumNode& node : nodes) {
    const int64_t count = blocks_for(node.elements.numel);
    if (count > 0) joins.add({.blocks = blocks, .sums = node.sums, .count = count}, 1);
    blocks += count;
  }
  joins.issue();
}

void trust_ratios(Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
                  const TrustFormula& formula) {
  Trusted table;  // `each` stays uninitialised beyond `count`
  while (!parameters.empty()) {
    table.count = static_cast<int32_t>(std::min<size_t>(parameters.size(), kMostTrusted));
    std::copy_n(parameters.begin(), table.count, table.each);
    launch(stream, "trust_ratios", trust_kernel, (table.count + kBlockThreads - 1) / kBlockThreads,
           kBlockThreads, table, sums, formula);
    parameters = parameters.subspan(static_cast<size_t>(table.count));
  }
}

void load_trust_ratios() {
  squares_kernel_of<LambTerms>().load("sum_squares");
  squares_kernel_of<SgdTerms>().load("sum_squares");
  load("sum_squares's tree", join_blocks_kernel);
  load("trust_ratios", trust_kernel);
}

}  // namespace fsdp::kernels::cuda
