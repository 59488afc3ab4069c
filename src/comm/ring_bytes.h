// The number of bytes that a rank sends in a collective.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

// Returns the number of bytes that each of `size` ranks sends if the ranks form a ring, rounded up.
// For a tensor of S bytes, all_gather and reduce_scatter take size - 1 steps of S / size bytes. An
// all_reduce is a reduce_scatter and an all_gather (Patarasuk and Yuan, 2009). In a broadcast each
// rank but the last sends S bytes to the next. The result is 0 for a barrier, and if there is only
// one rank.
int64_t ring_bytes(Operation operation, std::span<const CollectivePart> parts, int size);

// The largest all_reduce, in bytes, that HostsCommunicator exchanges as a whole.
inline constexpr int64_t kWholeAllReduceBytes = 16 << 10;
// Returns the number of bytes that a rank sends to other hosts in a collective of
// HostsCommunicator. `hosts` is Capabilities::hosts. For a tensor of S bytes, H hosts and n ranks,
// this number is (H - 1) / n · S in an all_gather or reduce_scatter and twice as much in an
// all_reduce. A small all_reduce sends (H - 1) · S. In a broadcast the number is an average over
// the ranks, rounded up.
int64_t bytes_to_other_hosts(Operation operation, std::span<const CollectivePart> parts, int size,
                             int hosts);

}  // namespace fsdp
