// Runs every collective with every dtype, on values whose results are exact: one sweep for threads
// and for processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::testing {

struct SweepCase {
  int64_t numel = 0;  // elements of one rank's piece
  bool in_place = false;
  bool in_peer_memory = false;  // from Communicator::allocate, else from the system
  bool threaded = false;        // on a threaded stream
  bool in_runs = false;         // the sent data is cut into runs; out of place only
};

// Runs all_gather, reduce_scatter and all_reduce (sum, avg where floating, max), broadcast from
// every rank (from first and last if the world is large) and barrier, for every dtype. Returns what
// was wrong on this rank, one line each; at most a few.
std::vector<std::string> sweep(Communicator& communicator, const SweepCase& sweep_case);

// Returns a case for every size, in and out of place, in any memory: numel 0, 1, 3, a prime and
// `large`.
std::vector<SweepCase> all_cases(int64_t large);
std::string describe(const SweepCase& sweep_case);

}  // namespace fsdp::testing
