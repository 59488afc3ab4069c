// The ranks of one host join the memory that they share.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/environment.h"
#include "comm/job/job_memory.h"
#include "comm/job/peer_processes.h"
#include "comm/rendezvous/rendezvous_server.h"
#include "comm/shm/shared_heap.h"

namespace fsdp {

// This process's access to the memory of its host's ranks.
struct HostRanks {
  std::shared_ptr<const JobMemory> memory;
  std::shared_ptr<SharedHeap> heap;                // the heap of this process's rank
  std::shared_ptr<const PeerProcesses> processes;  // watches the host's ranks
  // Rejects processes that start too late, for a few seconds. It is null on all ranks but the
  // host's first one, and if fsdp-run has started the ranks. Must not outlive the rank's mesh.
  std::unique_ptr<RendezvousServer> server;
};

// Joins the ranks `local` of this host, one of which is this process's rank. fsdp-run has started
// them, or they find each other through a rendezvous. Blocks until all of them have arrived.
// `pids`: the process ids of all ranks of the job, by rank. Only those of other hosts are used, so
// `pids` may be empty if all ranks are on this host. Ranks of other hosts count as present.
// Errors: InvalidArgument (78) for an environment that names no job. CommError or InvalidArgument
//   (78), on all ranks of the host, if the rendezvous fails (rendezvous/rendezvous.h).
HostRanks join_host(const LaunchEnvironment& environment, RankRange local,
                    std::chrono::milliseconds timeout, const std::vector<int>& pids = {});

}  // namespace fsdp
