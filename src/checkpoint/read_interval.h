// Reads a rank's interval of a parameter from a mapped file, in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "io/weights_file.h"

namespace fsdp {

// Elements [begin, begin + numel) of a dense parameter, in the order of memory that `strides` give.
struct MemoryInterval {
  std::span<const int64_t> strides;
  int64_t begin = 0;
  int64_t numel = 0;
};

// Receives a piece of the values, valid during the call; `at` is the index of its first element.
using TakeValues = std::function<void(int64_t at, std::span<const float> values)>;

// Calls `take` with pieces that make up the interval; `at` counts from its begin. A piece has at
// most 8 MiB, and its pages are released before the next. If the file has another order than the
// parameter in memory, the tensor is read from end to end, and passed as one piece.
// Requires: the tensor has the parameter's shape, and an element type of weights.
// Errors: IoError kCorruptData with tensor and element for a value that is not finite as float32.
void read_interval(const WeightsFile& file, const MappedTensor& tensor,
                   const MemoryInterval& interval, const TakeValues& take);

}  // namespace fsdp
