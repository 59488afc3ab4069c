#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/scaled.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cuda {
namespace {

// A run in the form that the kernel reads.
struct Segment {
  const void* source;
  void* destination;
  Stretch stretch;
  DType from, to;
  bool overwrite;
};

// Adds the elements of one block of a run. The pointers are not restrict, because a run may be
// added to itself. A thread reads its elements before it writes them.
template <class From, class To, bool kOverwrite>
__device__ __forceinline__ void add_run(const Segment& segment, int64_t block, float scale) {
  constexpr int kWidth = kWidthOf<sizeof(From), sizeof(To)>;
  const auto* source = static_cast<const From*>(segment.source);
  auto* destination = static_cast<To*>(segment.destination);
  const auto sum_of = [=](From from, To to) {
    const float value = scaled(to_float(from), scale);
    return from_float<To>(kOverwrite ? value : added(to_float(to), value));
  };
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        From from[kWidth];
        To to[kWidth] = {};
        load_vector(source + i, from);
        if constexpr (!kOverwrite) load_vector(destination + i, to);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) to[j] = sum_of(from[j], to[j]);
        store_vector(to, destination + i);
      },
      [=](int64_t i) {
        To to{};
        if constexpr (!kOverwrite) to = destination[i];
        destination[i] = sum_of(source[i], to);
      });
}

// The runs of one launch may have different dtypes, so one kernel handles all dtypes. A thread
// block belongs to one run, so its threads take the same branches.
template <int kMost>
__global__ void __launch_bounds__(kBlockThreads)
    accumulate_kernel(const __grid_constant__ SegmentTable<Segment, kMost> table, float scale) {
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  visit_element(segment.from, [&](auto from) {
    visit_element(segment.to, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      if (segment.overwrite) {
        add_run<From, To, true>(segment, place.block, scale);
      } else {
        add_run<From, To, false>(segment, place.block, scale);
      }
    });
  });
}

constexpr TableKernel<Segment, float> kKernel{accumulate_kernel<kManySegments<Segment>>,
                                              accumulate_kernel<kFewSegments>};

}  // namespace

void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale) {
  TableLaunch<Segment, float> launches(stream, "accumulate", kKernel, scale);
  for (const AccumulateRun& run : runs) {
    const int64_t from = size_of(run.source_dtype), to = size_of(run.destination_dtype);
    // A vector holds the same number of elements of the source type and of the destination type. It
    // has 16 bytes of the wider type and fewer bytes of the other.
    const Stretch stretch =
        stretch_of(run.numel, static_cast<int>(kVectorBytes / std::max(from, to)),
                   {{run.source, from}, {run.destination, to}});
    launches.add({run.source, run.destination, stretch, run.source_dtype, run.destination_dtype,
                  run.overwrite},
                 stretch.blocks());
  }
  launches.issue();
}

void load_accumulate() { kKernel.load("accumulate"); }

}  // namespace fsdp::kernels::cuda
