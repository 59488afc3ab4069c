// Adds runs of elements to other runs: for example a reduced gradient to the main gradient, or the
// gradient of a second micro-batch to that of the first.
//
// destination = round(float(destination) + float(source) · scale). The product and the sum are each
// rounded to fp32 (no fused multiply-add). The result is then rounded to the destination's dtype.
// Rounding and special values follow kernels/cast_pack.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/strided.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A contiguous run of elements to add. The dtypes are float32, bfloat16 or float16, in any
// combination. Runs must not overlap. The source and the destination of a run may be the same
// memory if their dtypes are equal.
struct AccumulateRun {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t numel = 0;
  DType source_dtype = DType::kFloat32;
  DType destination_dtype = DType::kFloat32;
  bool overwrite = false;  // true: the destination is not read (first of several additions)
};

// Adds all runs in one launch. The call copies `runs`, so the caller may free it.
// Errors: InvalidArgument, which names the dtypes, if a combination is not supported.
void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale = 1.0F);

// Adds one strided source to contiguous memory.
// Errors: as for accumulate; also InvalidArgument if the source has more than kMaxDims dimensions.
void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale = 1.0F);

}  // namespace fsdp::kernels
