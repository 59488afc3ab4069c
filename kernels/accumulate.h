// Adds runs of elements to others: a reduced gradient to the main gradient, a second micro-batch's
// gradient to the first's.
//
// destination = round(float(destination) + float(source) · scale): product and sum are each rounded
// to fp32 (no fused multiply-add), then the result to the destination's dtype. Rounding and special
// values as in kernels/cast_pack.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/strided.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// dtypes: float32, bfloat16, float16 in any combination. The runs must not overlap, except that
// source and destination may be the same memory if the dtypes are equal.
struct AccumulateRun {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t numel = 0;
  DType source_dtype = DType::kFloat32;
  DType destination_dtype = DType::kFloat32;
  bool overwrite = false;  // destination is not read: a cast, for the first of several additions
};

// All runs in one launch. The table is copied by the call.
// Errors: InvalidArgument naming the dtypes if a combination is not supported.
void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale = 1.0F);

// Adds one source with strides to contiguous memory.
// Errors: also InvalidArgument if it has more than kMaxDims dimensions.
void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale = 1.0F);

}  // namespace fsdp::kernels
