// A fingerprint of reductions whose sums are not exact. Its bits are equal on all ranks and in all
// communicators, unless the order of summation differs.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"

namespace fsdp::testing {

// Returns the fingerprint: all_reduce and reduce_scatter (then gathered) of `numel` inexact
// numbers, for every floating type, sum and average, from system and from peer memory.
std::string reduction_bits(Communicator& communicator, int64_t numel);

}  // namespace fsdp::testing
