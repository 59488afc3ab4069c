// How the processes of a job on several hosts meet.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/environment.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// Where a rank runs.
struct PlaceOfRank {
  std::string node;  // equal for ranks of one host
  std::string host;  // its name
  int local_rank = 0;
  int pid = 0;
};

// Says where this process is, and returns where all are, by rank.
// Errors: InvalidArgument or CommError (78), on all ranks that came: one is missing after `within`,
//   named; two processes have one rank; WORLD_SIZE differs.
std::vector<PlaceOfRank> meet_at_store(KeyValueStore& store, const LaunchEnvironment& environment,
                                       std::chrono::milliseconds within);

}  // namespace fsdp
