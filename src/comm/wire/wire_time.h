// What a collective costs on a wire.
#pragma once

#include <fsdp/mesh.h>

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

// It holds nothing back.
bool is_unlimited(const Wire& wire);
// Errors: InvalidArgument for a rate or a latency that is negative, not a number or infinite.
void require_possible(const Wire& wire);

// What each of `size` ranks sends when the ranks stand in a ring, in bytes, rounded up; of a
// broadcast each but the last. Of a tensor of S bytes all_gather and reduce_scatter take size - 1
// steps of S / size, an all_reduce is one of each (Patarasuk and Yuan, 2009), a broadcast passes S
// on. None of a barrier, and on one rank.
int64_t ring_bytes(Operation operation, std::span<const CollectivePart> parts, int size);

// From when all ranks are there until the collective is over, in nanoseconds, rounded up.
// Errors: InvalidArgument for more than a minute: nobody who waits hears of a failure meanwhile.
int64_t wire_ns(const Wire& wire, int64_t bytes);

}  // namespace fsdp
