// Random collectives with several parts of any size. Each rank chooses how it sends each part: in
// place, from separate memory, or in runs of elements. All values are integers, so every result is
// exact. Tests with thread ranks and tests with processes share them.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "support/cpu_streams.h"

namespace fsdp::testing {

using Random = std::mt19937_64;

// The operations that random collectives use.
inline constexpr std::array kOperations{Operation::kAllGather, Operation::kReduceScatter,
                                        Operation::kAllReduce, Operation::kBroadcast};

int64_t below(Random& random, int64_t end);
// Returns a name of 10 to 200 bytes, because units have names of this length.
std::string random_name(Random& random);

// Runs `calls` random collectives. `seed` must be equal on all ranks. Returns the errors on this
// rank, one a line.
std::vector<std::string> random_calls(Communicator& communicator, uint64_t seed, int calls,
                                      CpuStreams streams);

}  // namespace fsdp::testing
