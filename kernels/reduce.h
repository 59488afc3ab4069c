// Reduces the contributions of ranks. All communicators combine them here, so that the bits are the
// same.
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
// bfloat16 and float16 are accumulated in fp32 and rounded once (to nearest, ties to even), the
// others in their own type (integers wrap). kAvg divides the sum by sources.size(). kMax of
// floating types is NaN if any contribution is; it is not defined which NaN.
struct ReduceRun {
  std::span<const void* const> sources;  // one for each rank, at least one
  void* out = nullptr;                   // exactly one of the sources, or overlaps none
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Reduces all runs in one launch. The call copies the table and the runs' lists of sources.
// Requires: elements aligned to their size.
// Errors: InvalidArgument for a run without sources or with more than kMostSources, and for the
//   average of integers.
inline constexpr size_t kMostSources = 1024;
void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op);

}  // namespace kernels
}  // namespace fsdp
