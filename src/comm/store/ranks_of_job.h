// The rendezvous of a job's processes on several hosts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/environment.h"
#include "comm/job/control_segment.h"
#include "comm/job/failure.h"
#include "comm/store/key_value_store.h"
#include "fsdp/error.h"

namespace fsdp {

// The place where a rank runs.
struct PlaceOfRank {
  std::string node;  // equal for ranks of one host
  std::string host;  // name of the host
  int local_rank = 0;
  int pid = 0;
  bool shares_memory = false;  // the rank is able to share memory with the ranks of its host
};

// [Note: the cost of a start at the store] The N ranks of a job send 5 N requests to the store.
// Each rank sends one add, one set, one wait for N keys, one get of N keys and one search for a
// refusal. Two more requests (wait and search) of each rank follow in every max(100 ms, 4 ms · N)
// until the last rank has arrived. So the store reads 2 N² keys and sends N² places, about 20 and
// 40 bytes each. 1,024 ranks, as threads on two cores, take a second.

// Publishes the place of this process and returns the places of all ranks, by rank. `shares_memory`
// is a field of this process's place.
// Errors: InvalidArgument or CommError (78), on all ranks that arrived, if a rank is missing after
//   `within` (it is named), if two processes have the same rank, or if WORLD_SIZE differs.
std::vector<PlaceOfRank> meet_at_store(KeyValueStore& store, const LaunchEnvironment& environment,
                                       std::chrono::milliseconds within,
                                       bool shares_memory = false);

// Returns the ranks of this process's host. `places` is the result of meet_at_store.
// Errors: CommError (78), on all ranks, if the ranks of a host do not have consecutive numbers in
//   the order of LOCAL_RANK, if hosts have different numbers of ranks, or if LOCAL_WORLD_SIZE is
//   not this number.
RankRange ranks_of_host(KeyValueStore& store, const LaunchEnvironment& environment,
                        const std::vector<PlaceOfRank>& places);

// Stores an error of the start of the job, so that all ranks end with it, and returns the job's
// first error, which another rank may have stored before. If this process serves the store, it
// first waits until the other ranks that have arrived have called this function, at most for ten
// seconds. If the store does not answer any more, returns `error` as the failure of this rank.
Failure share_start_error(KeyValueStore& store, const LaunchEnvironment& environment,
                          const Error& error);

}  // namespace fsdp
