// HostMeeting: the launchers of several hosts agree on the starts of a job.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "comm/store/token_store.h"
#include "fsdp_run_ranks.h"
#include "host_gathering.h"

namespace fsdp {

// A start of the job: its number, and the hosts in the order of their ranks.
struct JobStart {
  int attempt = 0;
  std::vector<HostMember> hosts;
};

// The result of a wait for the next start: the start, or the exit code with which the job ends.
struct NextStart {
  std::optional<JobStart> start;
  int code = 0;
};

// The connection of this launcher to the store of the launchers, which a process of host 0 serves
// at MASTER_ADDR and MASTER_PORT. The ranks use the same store. See [Note: starts on several
// hosts].
class HostMeeting {
 public:
  // On host 0, serves the store. On other hosts, waits up to ten minutes for host 0. `job` has the
  // flags that must be equal on all hosts.
  // Requires: this process has one thread.
  // Errors: InvalidArgument (78) if the address, the port or the token cannot be used, or if `job`
  //   differs from that of host 0; CommError.
  HostMeeting(const HostOptions& hosts, const std::string& job);

  // For host 0: waits until the next start of the job may begin, and tells the other hosts. The
  // result has no start if a signal arrives that ends the job. `last` is the number of the last
  // start; -1: none. Errors: CommError if too few hosts come.
  NextStart gather(HostGathering& gathering, std::chrono::milliseconds pause, int last);
  // For host 0: waits for the reports of the hosts of the last start. Returns a signal that ends
  // the job, or 0.
  int collect(HostGathering& gathering);
  // For host 0: ends the launchers of the other hosts with this exit code.
  void end(int code);

  // For other hosts: reports how the ranks of start `attempt` ended; -1: no start.
  void report(int attempt, const FailedStart& own);
  // For other hosts: reports the same again and again, and waits for a start with this host or for
  // the end of the job. Errors: CommError if host 0 does not answer any more.
  NextStart wait(int attempt, const FailedStart& own);

 private:
  void require_equal_job(const std::string& job);
  void hear(HostGathering& gathering);
  // Stores the plan of a start, and prints which hosts are missing.
  JobStart announce(JobStart start);
  std::string plan();
  std::optional<JobStart> start_in(const std::string& plan) const;

  const HostOptions hosts_;
  const uint64_t id_;
  uint64_t beat_ = 0;
  std::vector<std::string> calls_;  // keys of the other hosts, from host 1 on
  Descriptor server_;               // keeps the process that serves the store
  std::unique_ptr<TokenStore> store_;
  bool told_to_wait_ = false;
};

}  // namespace fsdp
