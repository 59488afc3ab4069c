// Reads what a rank holds of a parameter out of a mapped file, in a bounded piece of memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

#include "checkpoint/weights_file.h"

namespace fsdp {

// Elements [begin, begin + numel) of a parameter that is laid out in memory by `strides`, dense.
struct MemoryInterval {
  std::span<const int64_t> strides;
  int64_t begin = 0;
  int64_t numel = 0;
};

// Calls take(at, values) with 1-d float32 tensors of the host, valid during the call, that make up
// the interval; `at` is a piece's first element, counted from the interval's begin. Pieces are of
// at most 8 MiB, and a piece's pages are given back before the next. A tensor that lies in the file
// in another order than the parameter in memory comes in one piece, and is read from end to end.
// Requires: the tensor has the parameter's shape, and an element type of weights.
// Errors: IoError kCorruptData with tensor and element for a value that is not finite as float32.
void read_interval(const WeightsFile& file, const MappedTensor& tensor,
                   const MemoryInterval& interval,
                   const std::function<void(int64_t at, const at::Tensor& values)>& take);

}  // namespace fsdp
