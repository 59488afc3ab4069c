// Bytes that a rank sends in a collective.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

// Returns the bytes that each of `size` ranks sends if the ranks form a ring, rounded up; in a
// broadcast, each rank but the last. For a tensor of S bytes all_gather and reduce_scatter need
// size - 1 steps of S / size, an all_reduce is one of each (Patarasuk and Yuan, 2009), and a
// broadcast passes S on. 0 for a barrier, and on one rank.
int64_t ring_bytes(Operation operation, std::span<const CollectivePart> parts, int size);

}  // namespace fsdp
