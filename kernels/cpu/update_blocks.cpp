#include "kernels/update_blocks.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/avx512_codes.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element/adamw.h"
#include "kernels/element/dynamic_map.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

// The elements that are decoded and updated in turn. Their number is small enough for a core to
// decode some while the divisions of the elements before them are in flight.
constexpr int64_t kChunk = 64;

template <bool kSigned>
FSDP_INLINE void decode(const uint8_t* __restrict codes, int64_t numel, float absmax, bool avx512,
                        float* __restrict values) {
  if (avx512 && numel % kCodesTogether == 0) {
    decode_by_avx512<kSigned>(codes, numel, absmax, values);
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) values[i] = value_of_code<kSigned>(codes[i]) * absmax;
}

// Stores the codes of a block's values and returns its absmax, which has the bits `largest`.
template <bool kSigned>
FSDP_INLINE float quantize(const float* __restrict values, int64_t numel, uint32_t largest,
                           bool avx512, uint8_t* __restrict codes) {
  const float absmax = bits_as<float>(largest);
  const float inverse = inverse_of(absmax);
  if (avx512 && numel % kCodesTogether == 0) {
    encode_by_avx512<kSigned>(values, numel, inverse, codes);
    return absmax;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i)
    codes[i] = static_cast<uint8_t>(code_of<kSigned>(values[i] * inverse));
  return absmax;
}

// Updates the elements [begin, begin + numel) of a segment, which are one block. The values of the
// moments stay in the core's cache until they are quantized.
template <class Copy>
FSDP_INLINE void update_block(const BlockSegment& segment, int64_t begin, int64_t numel,
                              const AdamWElement::Scalars s, bool avx512) {
  const int64_t block = begin / kQuantizedBlock;
  float* __restrict param = segment.elements.param + begin;
  const float* __restrict grad = segment.elements.grad + begin;
  uint8_t* __restrict first = segment.exp_avg.codes + begin;
  uint8_t* __restrict second = segment.exp_avg_sq.codes + begin;
  auto* __restrict copy = static_cast<uint16_t*>(segment.elements.low_precision_copy);
  if constexpr (!std::is_void_v<Copy>) copy += begin;
  float exp_avg[kQuantizedBlock], exp_avg_sq[kQuantizedBlock];
  uint32_t largest1 = 0, largest2 = 0;
  const auto update_chunk = [&](int64_t from, int64_t chunk) FSDP_INLINE_LAMBDA {
    decode<true>(first + from, chunk, segment.exp_avg.absmax[block], avx512, exp_avg + from);
    decode<false>(second + from, chunk, segment.exp_avg_sq.absmax[block], avx512,
                  exp_avg_sq + from);
#pragma GCC ivdep
    for (int64_t i = from; i < from + chunk; ++i) {
      float p = param[i];
      AdamWElement::update(p, grad[i], exp_avg[i], exp_avg_sq[i], s);
      largest1 = std::max(largest1, magnitude_bits(exp_avg[i]));
      largest2 = std::max(largest2, magnitude_bits(exp_avg_sq[i]));
      param[i] = p;
      if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
    }
  };
  const int64_t whole = numel / kChunk * kChunk;
  for (int64_t from = 0; from < whole; from += kChunk) update_chunk(from, kChunk);
  if (whole < numel) update_chunk(whole, numel - whole);
  segment.exp_avg.absmax[block] = quantize<true>(exp_avg, numel, largest1, avx512, first);
  segment.exp_avg_sq.absmax[block] = quantize<false>(exp_avg_sq, numel, largest2, avx512, second);
}

template <class Copy>
FSDP_INLINE void update_all(const BlockSegment& segment, const AdamWElement::Scalars& scalars) {
  const bool avx512 = has_avx512_codes();
  const int64_t numel = segment.elements.numel;
  const int64_t whole = numel / kQuantizedBlock * kQuantizedBlock;
  for (int64_t begin = 0; begin < whole; begin += kQuantizedBlock) {
    update_block<Copy>(segment, begin, kQuantizedBlock, scalars, avx512);
  }
  if (whole < numel) update_block<Copy>(segment, whole, numel - whole, scalars, avx512);
}

FSDP_TARGET_CLONES
void update_segment(const BlockSegment& segment, const AdamWElement::Scalars& scalars) {
  if (segment.elements.low_precision_copy == nullptr) {
    update_all<void>(segment, scalars);
  } else if (segment.elements.low_precision_dtype == DType::kBFloat16) {
    update_all<BFloat16>(segment, scalars);
  } else {
    update_all<Float16>(segment, scalars);
  }
}

}  // namespace

void update_blocks(Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
                   const UpdateScalars& given) {
  run_over_table(stream, segments, [rule, given](std::span<const BlockSegment> table) {
    if (given.found_inf != nullptr && *given.found_inf != 0.0F) return;
    AdamWElement::Scalars scalars = AdamWUpdate::host_scalars(rule);
    if (given.grad_scale != nullptr) scalars.grad_scale = *given.grad_scale;
    for (const BlockSegment& segment : table) {
      const UpdateSegment& elements = segment.elements;
      scalars.decay = AdamWUpdate::decay(elements.lr, elements.weight_decay);
      AdamWElement::Scalars own = scalars;
      AdamWUpdate::read_scalars(own, elements.lr, elements.step);
      update_segment(segment, own);
    }
  });
}

}  // namespace fsdp::kernels::cpu
