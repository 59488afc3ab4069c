// Reads what a rank holds of a parameter out of a mapped file, in a bounded piece of memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "io/weights_file.h"

namespace fsdp {

// Elements [begin, begin + numel) of a parameter that is laid out in memory by `strides`, dense.
struct MemoryInterval {
  std::span<const int64_t> strides;
  int64_t begin = 0;
  int64_t numel = 0;
};

// Is given a piece of the values, valid during the call; `at` is its first element's number.
using TakeValues = std::function<void(int64_t at, std::span<const float> values)>;

// Calls `take` with pieces that make up the interval, counted from its begin. Pieces are of
// at most 8 MiB, and a piece's pages are given back before the next. A tensor that lies in the file
// in another order than the parameter in memory comes in one piece, and is read from end to end.
// Requires: the tensor has the parameter's shape, and an element type of weights.
// Errors: IoError kCorruptData with tensor and element for a value that is not finite as float32.
void read_interval(const WeightsFile& file, const MappedTensor& tensor,
                   const MemoryInterval& interval, const TakeValues& take);

}  // namespace fsdp
