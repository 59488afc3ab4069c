// Adds runs of elements to others: a reduced gradient to the main gradient, a second micro-batch's
// gradient to the first's.
//
// destination = round(float(destination) + float(source) · scale): product and sum are each rounded
// to fp32 (no fused multiply-add), then the result to the destination's dtype. Rounding and special
// values are those of kernels/cast_pack.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/strided.h"
#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A run of contiguous elements to add. dtypes: float32, bfloat16, float16 in any combination. Runs
// must not overlap, except that source and destination may be the same memory if their dtypes are
// equal.
struct AccumulateRun {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t numel = 0;
  DType source_dtype = DType::kFloat32;
  DType destination_dtype = DType::kFloat32;
  bool overwrite = false;  // destination is not read: for the first of several additions
};

// Adds all runs in one launch. The call copies the table.
// Errors: InvalidArgument naming the dtypes if a combination is not supported.
void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale = 1.0F);

// Adds one strided source to contiguous memory.
// Errors: as accumulate; InvalidArgument also if the source has more than kMaxDims dimensions.
void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale = 1.0F);

}  // namespace fsdp::kernels
