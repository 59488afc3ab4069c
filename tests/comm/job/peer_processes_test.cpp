// Tests the check whether the processes of other ranks still run.
#include "comm/job/peer_processes.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "runtime/buffer.h"

namespace fsdp {
namespace {

// A child process that does nothing until it is killed.
class IdleChild {
 public:
  IdleChild() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~IdleChild() {
    kill_it();
    reap();
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;

  pid_t pid() const { return pid_; }
  // Kills the child and returns when it has ended. The child remains a zombie.
  void kill_it() const {
    if (is_reaped_) return;
    kill(pid_, SIGKILL);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  void reap() {
    if (!is_reaped_) waitpid(pid_, nullptr, 0);
    is_reaped_ = true;
  }

 private:
  const pid_t pid_;
  bool is_reaped_ = false;
};

struct Segment {
  explicit Segment(const std::vector<pid_t>& pids)
      : memory(allocate_host(ControlSegment::bytes_for(static_cast<int>(pids.size())))),
        control(memory.data(), static_cast<int>(pids.size())) {
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      control.status(static_cast<int>(rank)).pid.store(pids[rank]);
    }
  }
  Buffer memory;
  ControlSegment control;
};

TEST_CASE("the end of a process that is watched is seen at once, reaped or not") {
  IdleChild one, other;
  const Segment segment({getpid(), one.pid(), other.pid()});
  const PeerProcesses processes(segment.control, {0, 1, 2});
  for (const int rank : {0, 1, 2}) CHECK_FALSE(processes.ended(rank));
  one.kill_it();
  CHECK(processes.ended(1));
  one.reap();
  CHECK(processes.ended(1));
  CHECK_FALSE(processes.ended(0));
  CHECK_FALSE(processes.ended(2));
}

TEST_CASE("a rank that is not watched has never ended; one that ended before has") {
  IdleChild watched, unwatched;
  for (IdleChild* child : {&watched, &unwatched}) {
    child->kill_it();
    child->reap();
  }
  // No process on this host has this pid. So the rank appears to be on another host.
  const Segment segment({getpid(), watched.pid(), unwatched.pid()});
  const PeerProcesses processes(segment.control, {1});
  CHECK(processes.ended(1));
  CHECK_FALSE(processes.ended(0));
  CHECK_FALSE(processes.ended(2));
}

}  // namespace
}  // namespace fsdp
