// The rendezvous of a job's processes on one host: how they get the job's shared memory, without a
// port.
#pragma once

#include <chrono>
#include <memory>

#include "base/environment.h"
#include "comm/job/job_memory.h"
#include "comm/rendezvous/rendezvous_server.h"

namespace fsdp {

// Returns the descriptors inherited from fsdp-run. Effects: child processes do not inherit them.
JobDescriptors inherited_job(const LaunchEnvironment& environment);

// The files of a job that this process has joined.
struct JoinedJob {
  JobDescriptors files;
  std::unique_ptr<RendezvousServer> server;  // on rank 0 alone
};

// Joins the job. Rank 0 creates the job's files and waits for the others in a private directory
// named after the job's key; when all have arrived it sends them the descriptors. It takes over
// files that a dead run left there; the server removes the directory at its end.
// Errors: CommError or InvalidArgument (78), on all ranks that arrived: a rank missing after
//   `timeout` (named), two processes with one rank, WORLD_SIZE differing, another program in rank
//   0's place.
JoinedJob rendezvous_in_directory(const LaunchEnvironment& environment,
                                  std::chrono::milliseconds timeout);

}  // namespace fsdp
