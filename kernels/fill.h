// Fills runs of elements: gaps and padding with zeros, released memory with NaN (debug mode).
#pragma once

#include <cstdint>
#include <span>

#include "runtime/dtype.h"

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// A contiguous run of elements to fill.
struct FillRun {
  void* data = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Fills all runs with zero bytes. Any dtype is supported. The call copies `runs`, so the caller may
// free it.
void fill_zero(Stream& stream, std::span<const FillRun> runs);

// Fills all runs with quiet NaNs, so that a read of released memory shows in the loss. The call
// copies `runs`.
// Errors: InvalidArgument for an integer dtype, which has no NaN.
void fill_nan(Stream& stream, std::span<const FillRun> runs);

}  // namespace fsdp::kernels
