// The processes of the ranks that fsdp-run starts: start, forward, watch, name the root cause.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/job/job_memory.h"
#include "rank_output.h"

namespace fsdp {

struct LaunchOptions {
  int ranks = 1;
  std::string log_dir;      // empty: output passes through
  bool all_errors = false;  // of all ranks, also where they say the same
  std::vector<std::string> command;
};

// How the job ended: the code for the launcher, and its line if it is not 0.
struct JobEnd {
  int code = 0;
  std::string rank_line;  // the error that a rank ended by, where only a log file has it
  std::string line;       // how the first rank to fail ended, as error_line writes it; with the
                          // cause if no rank has said it
  std::string log_line;   // a warning if the log folder did not take what happened
};

class RankProcesses {
 public:
  // What wait() takes.
  static sigset_t signals();

  // Starts all ranks. Requires: the caller blocks signals() before.
  // Errors: InvalidArgument (64) if the program cannot be started; IoError (73) for the log folder.
  explicit RankProcesses(LaunchOptions options);
  // Kills what still runs, children of ranks included.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Waits until all ranks have ended; forwards SIGINT, SIGTERM and SIGHUP, also to ranks that are
  // stopped, and stops and goes on with all of them (SIGTSTP, SIGCONT). After the first bad end the
  // others have three seconds to end by themselves.
  JobEnd wait();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    pid_t pid = 0;
    bool ended = false;
    bool killed_here = false;  // it still ran when its time was over
    int wait_status = 0;
  };

  void start(int rank);
  [[noreturn]] void become_rank(int rank, pid_t launcher, int error_pipe);
  void export_environment(int rank) const;
  void redirect_output(int rank) const;
  std::string log_path(int rank, const char* stream) const;
  void reap();
  void note_end(int rank);
  void on_signal(int signal);
  void send(int signal) const;
  void kill_all();
  bool all_ended() const;
  int first_to_fail() const;
  JobEnd judge() const;
  void log_ends() const;
  std::string logged_error(int root, int code) const;

  LaunchOptions options_;
  JobDescriptors files_;
  Mapping control_memory_;
  ControlSegment control_;
  RankOutput output_;
  std::vector<Rank> ranks_;
  int64_t oom_kills_before_;
  int first_bad_ = -1;
  int forwarded_signal_ = 0;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace fsdp
