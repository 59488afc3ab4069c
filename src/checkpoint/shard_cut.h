// Distributes the writing of elements that several ranks hold.
#pragma once

#include <cstdint>

#include "checkpoint/state_part.h"

namespace fsdp {

// Elements [begin, begin + numel) of a tensor, in memory order.
struct ElementRange {
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t end() const { return begin + numel; }
};

// Returns the elements of the part that this rank writes. The ranks that hold the part write equal
// shares of it, in the order of the ranks. Within the part, shares begin at multiples of 4 KiB and
// of StatePart::granule. So a small part is written by its first holder alone.
ElementRange share_of(const StatePart& part);

}  // namespace fsdp
