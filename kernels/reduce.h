// Reductions over ranks' contributions: the one place where they are combined, so that all
// communicators give the same bits.
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

// out[i] = sources[0][i] ∘ sources[1][i] ∘ … in this order. float32, bfloat16 and float16 are
// accumulated in fp32 and rounded once (to nearest, ties to even), the others in their own type
// (integers wrap). kAvg divides the sum by sources.size(). kMax of floating types is NaN if any
// contribution is; no contract says which NaN.
struct ReduceRun {
  std::span<const void* const> sources;  // one a rank, at least one
  void* out = nullptr;                   // one of the sources exactly, or overlaps none
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// All runs in one launch. The table and the runs' lists of sources are copied by the call.
// Requires: elements aligned to their size.
// Errors: InvalidArgument for a run without sources or with more than kMostSources, and for the
//   average of integers.
inline constexpr size_t kMostSources = 1024;
void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op);

}  // namespace kernels
}  // namespace fsdp
