// How the processes of a job on one host find each other's memory, without a port.
#pragma once

#include <chrono>
#include <memory>

#include "base/environment.h"
#include "comm/job/job_memory.h"
#include "comm/rendezvous/rendezvous_server.h"

namespace fsdp {

// Descriptors inherited from fsdp-run. Effects: they are not inherited any further.
JobDescriptors inherited_job(const LaunchEnvironment& environment);

struct JoinedJob {
  JobDescriptors files;
  std::unique_ptr<RendezvousServer> server;  // on rank 0 alone
};

// Rank 0 makes the job's files and waits, in a private directory named after the job's key, for the
// others; when all have come it hands them the descriptors. What a run that died left there is
// taken over; the directory goes with the server.
// Errors: CommError or InvalidArgument (78), on all ranks that came: a rank missing after `timeout`
//   (named), two processes with one rank, WORLD_SIZE differing, something else in rank 0's place.
JoinedJob rendezvous_in_directory(const LaunchEnvironment& environment,
                                  std::chrono::milliseconds timeout);

}  // namespace fsdp
