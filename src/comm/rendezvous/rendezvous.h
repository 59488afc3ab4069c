// The rendezvous of a job's processes on one host. The rendezvous provides each process with the
// job's shared memory and needs no port.
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
  std::unique_ptr<RendezvousServer> server;  // only on rank 0
};

// Joins the job. Rank 0 creates the job's files. It waits for the other ranks in a private
// directory named after the job's key. When all ranks have arrived, it sends them the descriptors.
// Rank 0 reuses files that a dead run left in the directory. The server removes the directory when
// it ends.
// Errors: CommError or InvalidArgument (78), on all ranks that arrived, in these cases: a rank is
//   missing after `timeout` (it is named), two processes have the same rank, WORLD_SIZE differs, or
//   another program listens instead of rank 0.
JoinedJob rendezvous_in_directory(const LaunchEnvironment& environment,
                                  std::chrono::milliseconds timeout);

}  // namespace fsdp
