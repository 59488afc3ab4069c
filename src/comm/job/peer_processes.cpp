#include "comm/job/peer_processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {

PeerProcesses::PeerProcesses(const ControlSegment& control, const std::vector<int>& ranks)
    : processes_(static_cast<size_t>(control.world_size())) {
  for (const int rank : ranks) {
    const int pid = control.status(rank).pid.load();
    // A pidfd always refers to this process, while its pid may be reused. ESRCH means that the
    // process has already ended.
    Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process && errno != ESRCH) {
      throw InvalidArgument(
          {.what = fmt::format("the process of rank {} (pid {}) cannot be monitored", rank, pid),
           .where = "pidfd_open",
           .cause = std::strerror(errno),
           .hint = "run the ranks on Linux 5.3 or newer, in one PID namespace (one container)"});
    }
    processes_[static_cast<size_t>(rank)] = std::move(process);
  }
}

bool PeerProcesses::ended(int rank) const {
  const std::optional<Descriptor>& process = processes_[static_cast<size_t>(rank)];
  if (!process) return false;
  if (!*process) return true;
  // A pidfd becomes readable when its process ends.
  pollfd entry{.fd = process->get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace fsdp
