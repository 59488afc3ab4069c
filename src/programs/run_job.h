// Runs a job: starts its ranks on this host, and starts them again after failures.
#pragma once

#include "fsdp_run_ranks.h"
#include "restarts.h"

namespace fsdp {

// Runs the job, and returns the launcher's exit code. If the options name several hosts and
// restarts, the launchers of the hosts agree on each start (HostMeeting).
// Requires: this process has one thread.
// Errors: those of RankProcesses, HostMeeting and MemoryFolder.
int run_job(LaunchOptions options, const RestartOptions& restart_options);

}  // namespace fsdp
