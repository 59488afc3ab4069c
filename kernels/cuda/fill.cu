#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"

namespace fsdp::kernels::cuda {
namespace {

// A run in the form that the kernel reads.
struct Segment {
  void* data;
  Stretch stretch;
  int32_t element_bytes;
  uint64_t pattern;  // the bits of an element
};

template <class Element>
__device__ void fill(const Segment& segment, int64_t block) {
  constexpr int kWidth = kVectorBytes / sizeof(Element);
  const auto element = static_cast<Element>(segment.pattern);
  auto* data = static_cast<Element*>(segment.data);
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        Element values[kWidth];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values[j] = element;
        store_vector(values, data + i);
      },
      [=](int64_t i) { data[i] = element; });
}

template <int kMost>
__global__ void __launch_bounds__(kBlockThreads)
    fill_kernel(const __grid_constant__ SegmentTable<Segment, kMost> table) {
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  switch (segment.element_bytes) {
    case 8:
      return fill<uint64_t>(segment, place.block);
    case 4:
      return fill<uint32_t>(segment, place.block);
    case 2:
      return fill<uint16_t>(segment, place.block);
    default:
      return fill<uint8_t>(segment, place.block);
  }
}

constexpr TableKernel<Segment> kKernel{fill_kernel<kManySegments<Segment>>,
                                       fill_kernel<kFewSegments>};

// Returns the bits of the quiet NaN with positive sign and no payload, which the CPU kernel also
// writes.
uint64_t nan_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x7ff8000000000000;
    case DType::kFloat32:
      return 0x7fc00000;
    case DType::kBFloat16:
      return 0x7fc0;
    default:
      return 0x7e00;
  }
}

template <class Pattern>
void fill_runs(Stream& stream, std::string_view name, std::span<const FillRun> runs,
               Pattern pattern) {
  TableLaunch<Segment> launches(stream, name, kKernel);
  for (const FillRun& run : runs) {
    const int64_t bytes = size_of(run.dtype);
    const Stretch stretch =
        stretch_of(run.numel, static_cast<int>(kVectorBytes / bytes), {{run.data, bytes}});
    launches.add({run.data, stretch, static_cast<int32_t>(bytes), pattern(run.dtype)},
                 stretch.blocks());
  }
  launches.issue();
}

}  // namespace

void fill_zero(Stream& stream, std::span<const FillRun> runs) {
  fill_runs(stream, "fill_zero", runs, [](DType) { return uint64_t{0}; });
}

void fill_nan(Stream& stream, std::span<const FillRun> runs) {
  fill_runs(stream, "fill_nan", runs, nan_of);
}

void load_fill() { kKernel.load("fill"); }

}  // namespace fsdp::kernels::cuda
