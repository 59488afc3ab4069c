// Copies runs of elements with a change of dtype and a scale: for example gradients into a reduce
// slot, or a main shard into its position in a parameter slot.
//
// destination = round(float(source) · scale). The product is rounded to fp32 and then to the
// destination's dtype, both times to the nearest even. Subnormals and infinities are kept. Values
// beyond the destination's range become infinite. A NaN becomes a quiet NaN with the same sign and
// leading payload bits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/strided.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A contiguous run of elements to convert. The dtypes are float32, bfloat16 or float16, in any
// combination. Every dtype is supported if both dtypes are equal and the scale is 1, because bytes
// are then copied. If the dtypes are equal, the source and the destination may be the same memory.
// In all other cases they must not overlap.
struct CastRun {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t numel = 0;
  DType source_dtype = DType::kFloat32;
  DType destination_dtype = DType::kFloat32;
};

// Returns true if the bytes are copied without conversion.
constexpr bool is_copy(DType from, DType to, float scale) { return from == to && scale == 1.0F; }

// Converts all runs in one launch, so that many small runs cost one launch. The call copies `runs`,
// so the caller may free it.
// Errors: InvalidArgument, which names the dtypes, if a combination is not supported.
void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale = 1.0F);

// Converts one strided source into contiguous memory.
// Errors: as for cast_pack; also InvalidArgument if the source has more than kMaxDims dimensions.
void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale = 1.0F);

}  // namespace fsdp::kernels
