#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/reduce.h"

namespace fsdp::kernels::cuda {
namespace {

// The limits on the number of source pointers in a launch, for a large and for a small table.
constexpr int kMostPointers = 2048, kFewPointers = 128;
static_assert(kMostPointers >= static_cast<int>(kMostSources));

// The array of the sources of all runs. The runs share one array, because they may have different
// numbers of sources.
template <int kMost>
struct Pointers {
  const void* each[kMost];
};

// A run in the form that the kernel reads.
struct Segment {
  void* out;
  Stretch stretch;
  int32_t first_source, sources;  // range of this run in Pointers::each
  DType dtype;
};

constexpr int kMostSegments =
    kManySegments<Segment, kOtherParameterBytes + sizeof(Pointers<kMostPointers>)>;

// Reduces the elements of one block of a run, in the order of the sources. A thread reads its
// elements of all sources before it writes them, because `out` may be one of the sources.
template <class Element, ReduceOp kOp>
__device__ __forceinline__ void reduce_run(const Segment& segment, int64_t block,
                                           const void* const* sources) {
  constexpr int kWidth = kVectorBytes / sizeof(Element);
  const int count = segment.sources;
  auto* out = static_cast<Element*>(segment.out);
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        Element in[kWidth];
        AccumulatorOf<Element> sums[kWidth];
        load_vector(static_cast<const Element*>(sources[0]) + i, in);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[j] = loaded(in[j]);
#pragma unroll 1
        for (int source = 1; source < count; ++source) {
          load_vector(static_cast<const Element*>(sources[source]) + i, in);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) sums[j] = combined<kOp>(sums[j], loaded(in[j]));
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) in[j] = stored<Element>(finished<kOp>(sums[j], count));
        store_vector(in, out + i);
      },
      [=](int64_t i) {
        AccumulatorOf<Element> sum = loaded(static_cast<const Element*>(sources[0])[i]);
#pragma unroll 1
        for (int source = 1; source < count; ++source) {
          sum = combined<kOp>(sum, loaded(static_cast<const Element*>(sources[source])[i]));
        }
        out[i] = stored<Element>(finished<kOp>(sum, count));
      });
}

// The bound of four blocks per multiprocessor leaves 64 registers per thread. With a higher bound
// ptxas spills registers.
template <ReduceOp kOp, int kMost, int kPointers>
__global__ void __launch_bounds__(kBlockThreads, 4)
    reduce_kernel(const __grid_constant__ SegmentTable<Segment, kMost> table,
                  const __grid_constant__ Pointers<kPointers> pointers) {
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  visit_reduced<kOp>(segment.dtype, [&](auto element) {
    reduce_run<decltype(element), kOp>(segment, place.block, pointers.each + segment.first_source);
  });
}

template <int kMost, int kPointers>
auto kernel_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_kernel<ReduceOp::kSum, kMost, kPointers>;
    case ReduceOp::kAvg:
      return reduce_kernel<ReduceOp::kAvg, kMost, kPointers>;
    default:
      return reduce_kernel<ReduceOp::kMax, kMost, kPointers>;
  }
}
auto kernel_for_few(ReduceOp op) { return kernel_for<kFewSegments, kFewPointers>(op); }
auto kernel_for_many(ReduceOp op) { return kernel_for<kMostSegments, kMostPointers>(op); }

// Returns the run's stretch. The stretch has vectors only if the vector boundaries of all arrays
// coincide.
Stretch stretch_of_run(const ReduceRun& run) {
  const int64_t bytes = size_of(run.dtype);
  const auto width = static_cast<int>(kVectorBytes / bytes);
  Stretch stretch = stretch_of(run.numel, width, {{run.out, bytes}});
  for (const void* source : run.sources) {
    if (stretch_of(run.numel, width, {{source, bytes}}).skew == stretch.skew) continue;
    stretch.skew = Stretch::kNoVectors;
  }
  return stretch;
}

}  // namespace

// Collects runs and launches them as TableLaunch does. TableLaunch itself cannot be used, because
// it limits only the number of segments, and this launch must also limit the number of source
// pointers.
void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op) {
  SegmentTable<Segment, kMostSegments> table;
  Pointers<kMostPointers> pointers;
  int used = 0;
  const auto issue = [&] {
    if (table.count > kFewSegments || used > kFewPointers) {
      launch(stream, "reduce", kernel_for_many(op), table.blocks(), kBlockThreads, table, pointers);
    } else if (table.count > 0) {
      Pointers<kFewPointers> few;
      std::copy_n(pointers.each, used, few.each);
      launch(stream, "reduce", kernel_for_few(op), table.blocks(), kBlockThreads, few_of(table),
             few);
    }
    table.count = used = 0;
  };
  for (const ReduceRun& run : runs) {
    const Stretch stretch = stretch_of_run(run);
    if (run.numel == 0) continue;
    if (stretch.blocks() > kMostBlocks) refuse_blocks("reduce", stretch.blocks());
    const auto sources = static_cast<int>(run.sources.size());
    if (!table.has_room(stretch.blocks()) || used + sources > kMostPointers) issue();
    table.add({run.out, stretch, used, sources, run.dtype}, stretch.blocks());
    for (const void* source : run.sources) pointers.each[used++] = source;
  }
  issue();
}

void load_reduce() {
  for (const ReduceOp each : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    load("reduce", kernel_for_few(each));
    load("reduce", kernel_for_many(each));
  }
}

}  // namespace fsdp::kernels::cuda
