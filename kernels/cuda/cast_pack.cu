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
  int32_t copied_bytes;  // bytes of an element if elements are copied; 0 if they are converted
};

// Converts the elements of one block of a run. The pointers are not restrict, because a run may be
// cast in place. A thread reads its elements before it writes them.
template <class From, class To, class Convert>
__device__ __forceinline__ void convert_run(const Segment& segment, int64_t block,
                                            Convert convert) {
  constexpr int kWidth = kWidthOf<sizeof(From), sizeof(To)>;
  const auto* source = static_cast<const From*>(segment.source);
  auto* destination = static_cast<To*>(segment.destination);
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        From in[kWidth];
        To out[kWidth];
        load_vector(source + i, in);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) out[j] = convert(in[j]);
        store_vector(out, destination + i);
      },
      [=](int64_t i) { destination[i] = convert(source[i]); });
}

template <class Word>
__device__ void copy_run(const Segment& segment, int64_t block) {
  convert_run<Word, Word>(segment, block, [](Word word) { return word; });
}

// Copies elements as words of the same size, so that four instantiations handle every dtype.
__device__ void copy_of_size(const Segment& segment, int64_t block) {
  switch (segment.copied_bytes) {
    case 8:
      return copy_run<uint64_t>(segment, block);
    case 4:
      return copy_run<uint32_t>(segment, block);
    case 2:
      return copy_run<uint16_t>(segment, block);
    default:
      return copy_run<uint8_t>(segment, block);
  }
}

// The runs of one launch may have different dtypes, so one kernel handles all dtypes. A thread
// block belongs to one run, so its threads take the same branches.
template <int kMost>
__global__ void __launch_bounds__(kBlockThreads)
    cast_kernel(const __grid_constant__ SegmentTable<Segment, kMost> table, float scale) {
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  if (segment.copied_bytes != 0) return copy_of_size(segment, place.block);
  visit_element(segment.from, [&](auto from) {
    visit_element(segment.to, [&](auto to) {
      using To = decltype(to);
      convert_run<decltype(from), To>(segment, place.block, [=](auto value) {
        return from_float<To>(scaled(to_float(value), scale));
      });
    });
  });
}

constexpr TableKernel<Segment, float> kKernel{cast_kernel<kManySegments<Segment>>,
                                              cast_kernel<kFewSegments>};

}  // namespace

void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale) {
  TableLaunch<Segment, float> launches(stream, "cast_pack", kKernel, scale);
  for (const CastRun& run : runs) {
    const bool copies = is_copy(run.source_dtype, run.destination_dtype, scale);
    if (copies && run.source == run.destination) continue;  // nothing would change
    const int64_t from = size_of(run.source_dtype), to = size_of(run.destination_dtype);
    const Stretch stretch =
        stretch_of(run.numel, static_cast<int>(kVectorBytes / std::max(from, to)),
                   {{run.source, from}, {run.destination, to}});
    launches.add({run.source, run.destination, stretch, run.source_dtype, run.destination_dtype,
                  copies ? static_cast<int32_t>(from) : 0},
                 stretch.blocks());
  }
  launches.issue();
}

void load_cast_pack() { kKernel.load("cast_pack"); }

}  // namespace fsdp::kernels::cuda
