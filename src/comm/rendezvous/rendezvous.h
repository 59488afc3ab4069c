// The rendezvous of a job's processes on one host. The rendezvous provides each process with the
// memory that the ranks of the host share, and needs no port.
#pragma once

#include <chrono>
#include <memory>

#include "base/environment.h"
#include "comm/job/job_memory.h"
#include "comm/rendezvous/rendezvous_server.h"

namespace fsdp {

// Returns the descriptors that fsdp-run passed to this process. Also ensures that child processes
// do not inherit them.
JobDescriptors inherited_job(const LaunchEnvironment& environment);

// The files of a job that this process has joined.
struct JoinedJob {
  JobDescriptors files;
  std::unique_ptr<RendezvousServer> server;  // only on the host's first rank
};

// Joins the ranks `local` of this host. The first of them creates the host's files. It waits for
// the other ranks in a private directory, named after the job's key and the host. When all of
// them have arrived, it sends them the descriptors. It reuses files that a dead run left in the
// directory. The server removes the directory when it ends.
// Errors: CommError or InvalidArgument (78), on all ranks that arrived, in these cases: a rank is
//   missing after `timeout` (it is named), two processes have the same rank, WORLD_SIZE or the
//   ranks of the host differ, or another program listens instead of the host's first rank.
JoinedJob rendezvous_in_directory(const LaunchEnvironment& environment, RankRange local,
                                  std::chrono::milliseconds timeout);

}  // namespace fsdp
