#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/adamw.h"
#include "kernels/element/dynamic_map.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr unsigned kWholeWarp = ~0U;
constexpr int kLanes = 32;
// A warp updates a block. A lane has kQuads times four consecutive elements of it.
constexpr int kFour = kVectorBytes / sizeof(float);
constexpr int kQuads = static_cast<int>(kQuantizedBlock) / (kLanes * kFour);
constexpr int kWarpsOfBlock = kBlockThreads / kLanes;
constexpr int kBlocksOfWarp = static_cast<int>(kBlockNumel / (kQuantizedBlock * kWarpsOfBlock));

// A segment in the form that the kernel reads.
struct Blocks {
  float* param;
  const float* grad;
  QuantizedMoment exp_avg;
  QuantizedMoment exp_avg_sq;
  void* copy;
  const StepCount* step;
  double lr;
  int64_t numel;
  float decay;
  DType copy_dtype;
  bool vectors;  // true if all arrays are aligned to vectors
};

template <class Element>
__device__ __forceinline__ void load_four(const Element* from, int64_t i, const Blocks& segment,
                                          Element (&to)[kFour]) {
  if (segment.vectors && i + kFour <= segment.numel) {
    load_vector(from + i, to);
    return;
  }
#pragma unroll
  for (int j = 0; j < kFour; ++j) to[j] = i + j < segment.numel ? from[i + j] : Element(0);
}

template <class Element>
__device__ __forceinline__ void store_four(const Element (&from)[kFour], int64_t i,
                                           const Blocks& segment, Element* to) {
  if (segment.vectors && i + kFour <= segment.numel) {
    store_vector(from, to + i);
    return;
  }
#pragma unroll
  for (int j = 0; j < kFour; ++j) {
    if (i + j < segment.numel) to[i + j] = from[j];
  }
}

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Returns the absmax of the block in every lane. Only the lane that writes it later reads it, so no
// barrier is needed between the reads and the write.
__device__ __forceinline__ float absmax_of(const QuantizedMoment& moment, int64_t begin, int lane) {
  const float absmax = lane == 0 ? moment.absmax[begin / kQuantizedBlock] : 0.0F;
  return __shfl_sync(kWholeWarp, absmax, 0);
}

// Stores the codes of a lane's elements, and the absmax of the block. `largest` has the largest
// magnitude of the lane's elements. All lanes of the warp must call it.
template <bool kSigned>
__device__ __forceinline__ void quantize(const float (&values)[kQuads][kFour], uint32_t largest,
                                         int64_t begin, int lane, const Blocks& segment,
                                         const QuantizedMoment& to) {
#pragma unroll
  for (int apart = 1; apart < kLanes; apart *= 2) {
    largest = larger(largest, __shfl_xor_sync(kWholeWarp, largest, apart));
  }
  const float absmax = bits_as<float>(largest);
  const float inverse = inverse_of(absmax);
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    uint8_t codes[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j)
      codes[j] = static_cast<uint8_t>(code_of<kSigned>(values[quad][j] * inverse));
    store_four(codes, begin + (quad * kLanes + lane) * kFour, segment, to.codes);
  }
  if (lane == 0) to.absmax[begin / kQuantizedBlock] = absmax;
}

// Updates a lane's elements of the block that begins at element `begin`. `Copy` is void if there is
// no lower-precision copy.
template <class Copy>
__device__ __forceinline__ void update_block(const Blocks& segment, int64_t begin, int lane,
                                             const AdamWElement::Scalars& s) {
  const float absmax1 = absmax_of(segment.exp_avg, begin, lane);
  const float absmax2 = absmax_of(segment.exp_avg_sq, begin, lane);
  float exp_avg[kQuads][kFour], exp_avg_sq[kQuads][kFour];
  uint32_t largest1 = 0, largest2 = 0;
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    const int64_t i = begin + (quad * kLanes + lane) * kFour;
    float p[kFour], g[kFour];
    uint8_t first[kFour], second[kFour];
    load_four<float>(segment.param, i, segment, p);
    load_four(segment.grad, i, segment, g);
    load_four<uint8_t>(segment.exp_avg.codes, i, segment, first);
    load_four<uint8_t>(segment.exp_avg_sq.codes, i, segment, second);
#pragma unroll
    for (int j = 0; j < kFour; ++j) {
      float a = value_of_code<true>(first[j]) * absmax1;
      float b = value_of_code<false>(second[j]) * absmax2;
      AdamWElement::update(p[j], g[j], a, b, s);
      exp_avg[quad][j] = a;
      exp_avg_sq[quad][j] = b;
      if (i + j < segment.numel) {
        largest1 = larger(largest1, magnitude_bits(a));
        largest2 = larger(largest2, magnitude_bits(b));
      }
    }
    store_four(p, i, segment, segment.param);
    if constexpr (!std::is_void_v<Copy>) {
      uint16_t narrow[kFour];
#pragma unroll
      for (int j = 0; j < kFour; ++j) narrow[j] = from_float<Copy>(p[j]).bits;
      store_four(narrow, i, segment, static_cast<uint16_t*>(segment.copy));
    }
  }
  quantize<true>(exp_avg, largest1, begin, lane, segment, segment.exp_avg);
  quantize<false>(exp_avg_sq, largest2, begin, lane, segment, segment.exp_avg_sq);
}

// Reads found_inf and the scale on the device, because the host runs ahead of the stream.
__global__ void __launch_bounds__(kBlockThreads)
    quantized_kernel(const __grid_constant__ ManySegments<Blocks> table,
                     const AdamWElement::Scalars common, const UpdateScalars given) {
  if (given.found_inf != nullptr && *given.found_inf != 0.0F) return;
  const BlockPlace place = place_of_block(table);
  const Blocks& segment = table.segments[place.segment];
  AdamWElement::Scalars scalars = common;
  scalars.decay = segment.decay;
  if (given.grad_scale != nullptr) scalars.grad_scale = *given.grad_scale;
  AdamWUpdate::read_scalars(scalars, segment.lr, segment.step);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (int round = 0; round < kBlocksOfWarp; ++round) {
    const int64_t begin =
        place.block * kBlockNumel + (round * kWarpsOfBlock + warp) * kQuantizedBlock;
    if (begin >= segment.numel) return;
    if (segment.copy == nullptr) {
      update_block<void>(segment, begin, lane, scalars);
    } else if (segment.copy_dtype == DType::kBFloat16) {
      update_block<BFloat16>(segment, begin, lane, scalars);
    } else {
      update_block<Float16>(segment, begin, lane, scalars);
    }
  }
}

TableKernel<Blocks, AdamWElement::Scalars, UpdateScalars> quantized_kernel_of() {
  return {.many = &quantized_kernel};
}

}  // namespace

void update_blocks(Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
                   const UpdateScalars& given) {
  TableLaunch<Blocks, AdamWElement::Scalars, UpdateScalars> launches(
      stream, "update_blocks", quantized_kernel_of(), AdamWUpdate::host_scalars(rule), given);
  for (const BlockSegment& each : segments) {
    const UpdateSegment& from = each.elements;
    const Stretch stretch = stretch_of(from.numel, kFour,
                                       {{from.param, 4},
                                        {from.grad, 4},
                                        {each.exp_avg.codes, 1},
                                        {each.exp_avg_sq.codes, 1},
                                        {from.low_precision_copy, 2}});
    launches.add({.param = from.param,
                  .grad = from.grad,
                  .exp_avg = each.exp_avg,
                  .exp_avg_sq = each.exp_avg_sq,
                  .copy = from.low_precision_copy,
                  .step = from.step,
                  .lr = from.lr,
                  .numel = from.numel,
                  .decay = AdamWUpdate::decay(from.lr, from.weight_decay),
                  .copy_dtype = from.low_precision_dtype,
                  .vectors = stretch.skew == 0},
                 blocks_for(from.numel));
  }
  launches.issue();
}

void load_update_blocks() { quantized_kernel_of().load("update_blocks"); }

}  // namespace fsdp::kernels::cuda
