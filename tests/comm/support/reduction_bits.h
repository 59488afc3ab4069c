// A fingerprint of reductions whose sums are not exact. Its bits are equal on all ranks and for all
// communicators that sum in the same order.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"

namespace fsdp::testing {

// Returns the fingerprint. It runs all_reduce and reduce_scatter (and gathers the results) on
// `numel` inexact numbers, for every floating dtype, for sum and average, in system and in peer
// memory.
std::string reduction_bits(Communicator& communicator, int64_t numel);

}  // namespace fsdp::testing
