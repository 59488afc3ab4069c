// Copies runs of elements with a change of dtype and a scale: gradients into a reduce slot, a main
// shard into its place in a parameter slot.
//
// destination = round(float(source) · scale): the product is rounded to fp32, then to the
// destination's dtype, both to the nearest even. Subnormals and infinities are kept. Values beyond
// the destination's range become infinite. NaN stays NaN: quiet, with its sign and leading payload.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/strided.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A run of contiguous elements to convert. dtypes: float32, bfloat16, float16 in any combination;
// with equal dtypes and scale 1 every dtype (bytes are copied). Source and destination may be the
// same memory if the dtypes are equal; otherwise they must not overlap.
struct CastRun {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t numel = 0;
  DType source_dtype = DType::kFloat32;
  DType destination_dtype = DType::kFloat32;
};

// Returns true if bytes are copied instead of converted.
constexpr bool is_copy(DType from, DType to, float scale) { return from == to && scale == 1.0F; }

// Converts all runs in one launch, so that many small ones cost one. The call copies the table.
// Errors: InvalidArgument naming the dtypes if a combination is not supported.
void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale = 1.0F);

// Converts one strided source into contiguous memory.
// Errors: as cast_pack; InvalidArgument also if the source has more than kMaxDims dimensions.
void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale = 1.0F);

}  // namespace fsdp::kernels
