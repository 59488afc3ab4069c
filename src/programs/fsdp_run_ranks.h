// Starts and watches the processes of fsdp-run's ranks, forwards signals to them, and names the
// root cause of a failure.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/job/job_memory.h"
#include "fsdp/error.h"
#include "rank_logs.h"
#include "rank_output.h"

namespace fsdp {

// The hosts of a job. Each host has its own fsdp-run, which starts the ranks of this host.
struct HostOptions {
  int least = 1, most = 1;  // numbers of hosts with which the job may run (--nnodes)
  int number = 0;           // of this host (--node-rank)
  // The launchers agree on each start of the job (HostMeeting), and the ranks use their store.
  bool agree_on_starts = false;
  // In this start of the job:
  int count = 1;
  int index = 0;           // of this host, from 0
  std::string address;     // of the host of rank 0; empty: not set, possible only on one host
  int port = 0;            // at this address
  std::string token_file;  // absolute path of the job's token; empty: the job has no token
};

// The command line of fsdp-run.
struct LaunchOptions {
  int ranks = 1;  // on this host
  HostOptions hosts;
  std::string log_dir;  // empty: the output of ranks is passed on
  int attempt = 0;      // number of restarts before this start of the job
  int max_restarts = 0;
  std::string memory_folder;  // MemoryFolder::path of the launcher; empty: none
  int progress_file = -1;     // descriptor of the job's JobProgress; -1: no such file
  bool all_errors = false;    // also show repeated errors
  // The time after SIGINT, SIGTERM or SIGHUP at which ranks that still run are killed.
  std::chrono::seconds kill_after{60};
  std::vector<std::string> command;

  int world_size() const { return hosts.count * ranks; }
  RankRange local() const { return {hosts.index * ranks, ranks}; }
};

// The end of a job on this host: the launcher's exit code and, if the code is not 0, lines for
// stderr.
struct JobEnd {
  int code = 0;
  std::string rank_line;     // error line of the first rank that failed, if only a log has it
  std::string line;          // how the first rank to fail ended, as error_line writes it; with the
                             // cause if no rank printed it
  std::string log_line;      // warning if the log folder could not be written
  bool was_stopped = false;  // a signal to the launcher ended the job
  // The first rank of this host that failed; not set if all ended well or the job was stopped.
  int rank = 0;
  int wait_status = 0;
  bool out_of_memory = false;
};

// The processes of all ranks of this host. Ranks have the job's numbers.
class RankProcesses {
 public:
  // Starts all ranks. Requires: the caller has blocked launcher_signals().
  // Errors: InvalidArgument (64) if the program cannot be started; IoError (73) if the log folder
  //   cannot be written.
  explicit RankProcesses(LaunchOptions options);
  // Kills all ranks that still run, and their children.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Waits until all ranks have ended. Forwards SIGINT, SIGTERM and SIGHUP, also to stopped ranks,
  // and SIGUSR1, by which a program saves a checkpoint.
  // SIGTSTP stops all ranks and the launcher. SIGCONT resumes them. After the first failure the
  // other ranks have three seconds to end by themselves.
  JobEnd wait();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int number = 0;
    pid_t pid = 0;
    bool ended = false;
    bool killed_here = false;  // true if the launcher killed it after the grace period
    int wait_status = 0;
  };

  void start(Rank& rank);
  [[noreturn]] void become_rank(int rank, pid_t launcher, int error_pipe);
  void export_environment(int rank) const;
  void export_hosts() const;
  void redirect_output(int rank) const;
  void reap();
  void note_end(Rank& ended);
  void on_signal(int signal);
  void send(int signal) const;
  void kill_all();
  bool all_ended() const;
  ErrorPlace place_of(int rank) const;
  const Rank* first_to_fail() const;
  JobEnd judge() const;
  void log_ends() const;

  LaunchOptions options_;
  JobDescriptors files_;
  Mapping control_memory_;
  ControlSegment control_;
  RankLogs logs_;
  RankOutput output_;
  std::vector<Rank> ranks_;  // of this host
  int64_t oom_kills_before_;
  const Rank* first_bad_ = nullptr;
  int forwarded_signal_ = 0;  // the signal that ends the job; 0: none
  Clock::time_point forwarded_at_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace fsdp
