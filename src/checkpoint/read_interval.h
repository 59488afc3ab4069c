// Reads a rank's interval of a parameter from a mapped file with bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "io/weights_file.h"

namespace fsdp {

// Elements [begin, begin + numel) of a dense parameter, in the memory order that `strides` define.
struct MemoryInterval {
  std::span<const int64_t> strides;
  int64_t begin = 0;
  int64_t numel = 0;
};

// A function that receives a chunk of the values. The chunk is valid only during the call. `at` is
// the index of its first element.
using TakeValues = std::function<void(int64_t at, std::span<const float> values)>;

// Calls `take` with consecutive chunks of the interval. `at` counts from the begin of the interval.
// A chunk has at most 8 MiB, and its pages are released before the next chunk is read. If the file
// stores the elements in another order than the parameter's memory, the whole tensor is read and
// the interval is passed as one chunk.
// Requires: the tensor has the parameter's shape, and an element type that weights can have.
// Errors: IoError kCorruptData that names the tensor and the element if a value is not finite as
//   float32.
void read_interval(const WeightsFile& file, const MappedTensor& tensor,
                   const MemoryInterval& interval, const TakeValues& take);

}  // namespace fsdp
