// A fingerprint of reductions whose sums are not exact: equal bits on all ranks and in all
// communicators, or the order of summation differs.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"

namespace fsdp::testing {

// all_reduce and reduce_scatter (then gathered) of `numel` awkward numbers, for every floating
// type, sum and average, from system and from peer memory.
std::string reduction_bits(Communicator& communicator, int64_t numel);

}  // namespace fsdp::testing
