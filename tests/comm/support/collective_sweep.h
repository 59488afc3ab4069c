// A test that runs every collective with every dtype. Results are exact for the values used. Tests
// with thread ranks and tests with processes share it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::testing {

struct SweepCase {
  int64_t numel = 0;  // number of elements for each rank
  bool in_place = false;
  bool in_peer_memory = false;  // from Communicator::allocate, else from the system
  bool threaded = false;        // on a threaded stream
  bool in_runs = false;  // the sent data consists of several runs of elements; out of place only
};

// Runs all collectives for every dtype: all_gather, reduce_scatter, all_reduce, broadcast and
// barrier. all_reduce uses sum and max, and avg for floating dtypes. broadcast is sent from every
// rank, or from the first and the last rank if the world is large. Returns the errors on this rank,
// one a line, and stops after a few.
std::vector<std::string> sweep(Communicator& communicator, const SweepCase& sweep_case);

// Returns the cases for numel 0, 1, 3, a prime and `large`, in place and out of place, in system
// memory and in peer memory.
std::vector<SweepCase> all_cases(int64_t large);
std::string describe(const SweepCase& sweep_case);

}  // namespace fsdp::testing
