// Applies AdamW to segments whose moments are stored in 8 bits, in blocks of 256 elements. One call
// updates all segments of a table in one pass over memory.
//
// A block stores one code per element and one fp32 absmax for each moment. A moment's value is
// map(code) · absmax. The update computes both values, applies AdamW (kernels/adamw.h) in fp32, and
// quantizes the new values v of a block:
//   absmax = the largest |v| of the block
//   code   = the code with the value nearest to v / absmax
// If a value of a block is not finite, the absmax is not finite either, so the error stays visible.
// The parameter is updated by the values before they are quantized, as in bitsandbytes.
//
// The codes are those of bitsandbytes' dynamic map. exp_avg has the signed map and exp_avg_sq the
// unsigned one. The positive values of a map are 1 and, in each decade from 10^-7 to 1, values of
// equal distance. The decade 10^(d-7) to 10^(d-6), for d from 0 to 6, has the values
// 10^(d-6) · (0.1 + 0.9 · (k + 0.5) / n) for k from 0 to n - 1, with n = 2^d (signed) or 2^(d+1).
// The other values are 0 and, in the signed map, the negated values except -1. Codes number the
// values in ascending order. kernels/element/dynamic_map.h computes values and codes in fp32. The
// values differ from bitsandbytes' in at most 2^-20 of the value. A code can differ only by 1, if
// v / absmax is within about 10^-6 of the middle between two values. bitsandbytes' CUDA kernel also
// keeps the sign of an exp_avg whose nearest value is 0. This kernel does not.
// Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization".
#pragma once

#include <cstdint>
#include <span>

#include "kernels/adamw.h"
#include "kernels/update.h"

namespace fsdp::kernels {

// The number of elements of a block.
inline constexpr int64_t kQuantizedBlock = 256;

// A moment in 8 bits. Memory that is all zero is a moment of zero.
struct QuantizedMoment {
  uint8_t* codes = nullptr;  // one per element
  float* absmax = nullptr;   // one per block; the last block may be shorter
};

// A run of elements whose first block begins at its first element.
struct BlockSegment {
  UpdateSegment elements;  // `moments` and `trust_ratio` are not used
  QuantizedMoment exp_avg;
  QuantizedMoment exp_avg_sq;
};

// Updates all segments. The call copies `segments`, so the caller may free it. Scalars and counters
// are read in stream order.
// Errors: InvalidArgument if a low_precision_dtype is neither bfloat16 nor float16.
void update_blocks(Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
                   const UpdateScalars& scalars = {});

}  // namespace fsdp::kernels
