// What a rank sends in a collective.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

// What each of `size` ranks sends when the ranks stand in a ring, in bytes, rounded up; of a
// broadcast each but the last. Of a tensor of S bytes all_gather and reduce_scatter take size - 1
// steps of S / size, an all_reduce is one of each (Patarasuk and Yuan, 2009), a broadcast passes S
// on. None of a barrier, and on one rank.
int64_t ring_bytes(Operation operation, std::span<const CollectivePart> parts, int size);

}  // namespace fsdp
