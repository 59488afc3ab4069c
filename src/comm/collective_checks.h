// Argument checks for all communicators, and the division of a large all_reduce into shares.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace fsdp {

// Checks a collective of a group of `size` ranks. Errors: InvalidArgument if an argument is invalid
// on its own, whatever the other ranks pass.
void require_valid(const Collective& collective, int size);

// Checks the color that a rank passes to split a group. Errors: InvalidArgument if it is negative.
void require_color(int color, std::string_view where);

// A range of elements, [begin, end).
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns the elements that `rank` reduces for all ranks. Shares begin at multiples of 64 elements,
// so they begin at whole cache lines for any dtype. The last shares may be shorter or empty.
Share share_of(int rank, int size, int64_t numel);

}  // namespace fsdp
