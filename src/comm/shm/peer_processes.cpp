#include "comm/shm/peer_processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp/error.h"

namespace fsdp {

PeerProcesses::PeerProcesses(const ControlSegment& control) {
  for (int rank = 0; rank < control.world_size(); ++rank) {
    const int pid = control.status(rank).pid.load();
    Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process && errno != ESRCH) {
      throw InvalidArgument(
          {.what = fmt::format("rank {}'s process {} cannot be watched", rank, pid),
           .where = "pidfd_open",
           .cause = std::strerror(errno),
           .hint = "ranks need Linux 5.3 or newer and one pid namespace"});
    }
    processes_.push_back(std::move(process));
  }
}

bool PeerProcesses::ended(int rank) const {
  const Descriptor& process = processes_[rank];
  if (!process) return true;
  pollfd entry{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace fsdp
