// HostGathering: decides with which hosts a job starts (fsdp-run --nnodes MIN:MAX --max-restarts).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "restarts.h"

namespace fsdp {

// The text by which the launcher of a host says that it waits for the next start of the job.
struct HostCall {
  uint64_t id = 0;    // a random number of this launcher: a later launcher of the host has another
  uint64_t beat = 0;  // grows while the launcher waits
  int attempt = -1;   // the last start of the job in which the host took part; -1: none
  FailedStart end{};  // how its ranks ended then; code 0: well
};
std::string text_of(const HostCall& call);
HostCall host_call_of(const std::string& text);

// The launcher of a host that takes part in a start of the job.
struct HostMember {
  int host = 0;  // --node-rank
  uint64_t id = 0;
  bool operator==(const HostMember&) const = default;
};

// The decisions of host 0's launcher, without sockets and processes.
//
// [Note: starts on several hosts] The launcher of host 0 serves a store, which lasts over all
// starts of the job. The launchers of the other hosts call there several times a second while they
// wait. A launcher does not call while its ranks run, because the ranks themselves notice a host
// that is lost. When the ranks of host 0 have ended, its launcher waits until the hosts of that
// start have reported how their ranks ended. A host that does not report in time counts as lost.
// Then the launcher waits for the pause before a restart, and for hosts. It starts with all hosts
// or, when the time for further hosts is over, with at least `least`. So a host that comes back
// later takes part from the next start on. Host 0 always takes part, because it serves the store.
class HostGathering {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  struct Options {
    int least = 1, most = 1;           // number of hosts, with host 0
    std::chrono::milliseconds wait{};  // the time for further hosts if there are `least`
    std::chrono::milliseconds give_up = std::chrono::minutes(10);  // the time for `least` hosts
  };
  // The least time in which the hosts of a start must report. Launchers kill ranks three seconds
  // after the first of them has failed.
  static constexpr auto kReportWithin = std::chrono::seconds(5);
  // A launcher that has not called for so long does not wait.
  static constexpr auto kSilent = std::chrono::seconds(3);

  // Waits for the first start of the job from `now` on.
  HostGathering(const Options& options, Time now) : options_(options), begin_(now) {}

  // Called when the ranks of host 0 have ended. `members` are the hosts of start `attempt`.
  void end_start(int attempt, std::vector<HostMember> members, Time now);
  // Notes the last call of a host.
  void hear(int host, const HostCall& call, Time now);

  // Returns true if each host of the last start has reported or counts as lost.
  bool has_reports(Time now) const;
  // Returns how the last start failed: the end of the ranks that caused the other ends, with the
  // step and the checkpoints of `own`, the end of host 0's ranks. Its code is 0 if all ranks of all
  // hosts that have reported ended well.
  FailedStart cause(const FailedStart& own) const;

  enum class State : uint8_t { kWaits, kStarts, kGivesUp };
  // `pause`: the least time since the end of the last start.
  State state(Time now, std::chrono::milliseconds pause) const;
  // Returns the hosts that wait now, by number. The first one is host 0, with the id 0.
  std::vector<HostMember> waiting(Time now) const;

 private:
  struct Heard {
    HostCall call;
    Time at;  // when `beat` grew last
  };
  const Heard* heard_of(int host) const;

  const Options options_;
  Time begin_;  // of the wait
  int attempt_ = -1;
  std::vector<HostMember> members_;  // of start attempt_
  std::map<int, Heard> heard_;       // by host
};

}  // namespace fsdp
