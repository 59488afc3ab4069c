// Reduces the contributions of ranks. All communicators use these functions, so that their results
// have the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/dtype.h"

namespace fsdp {

class Stream;

enum class ReduceOp : uint8_t { kSum, kAvg, kMax };
std::string_view name_of(ReduceOp op);

namespace kernels {

// A run of elements to reduce: out[i] = sources[0][i] ∘ sources[1][i] ∘ … in this order. float32,
// bfloat16 and float16 are accumulated in fp32 and rounded once (to nearest, ties to even). Other
// dtypes are accumulated in their own type, and integers wrap. kAvg divides the sum by
// sources.size(). kMax of floating types is NaN if any contribution is NaN. The bits of that NaN
// are not defined.
struct ReduceRun {
  std::span<const void* const> sources;  // one for each rank; at least one
  void* out = nullptr;                   // is one of the sources, or overlaps none of them
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Reduces all runs in one launch. The call copies `runs` and their lists of sources, so the caller
// may free both.
// Requires: elements are aligned to their size.
// Errors: InvalidArgument if a run has no source or more than kMostSources, or for kAvg of
//   integers.
inline constexpr size_t kMostSources = 1024;
void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op);

}  // namespace kernels
}  // namespace fsdp
