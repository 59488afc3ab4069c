#include "comm/rendezvous/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "comm/job/collective_failures.h"
#include "comm/mesh_parts.h"
#include "comm/rendezvous/private_directory.h"
#include "comm/rendezvous/rendezvous_messages.h"
#include "comm/rendezvous/unix_socket.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

[[noreturn]] void refuse(const Refusal& refusal) {
  throw CommError({.what = refusal.what, .where = "start of the job", .hint = refusal.hint},
                  ExitCode::kConfiguration);
}

Descriptor find_server(const std::string& directory, Clock::time_point deadline) {
  while (true) {
    if (check_private_directory(directory)) {
      // The socket may not exist yet, or may be left from a dead run, so the loop tries again.
      if (Descriptor server = connect_to(directory + "/" + kRendezvousSocket)) return server;
    }
    if (Clock::now() > deadline) return {};
    std::this_thread::sleep_for(milliseconds(5));
  }
}

// Receives one of the replies of `first`, the host's first rank. Returns the descriptors that are
// attached to it.
std::vector<Descriptor> next_reply(const Descriptor& server, int first,
                                   const std::string& directory, Clock::time_point deadline) {
  JoinReply reply;
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  auto received = receive_message(server, bytes_of(reply), std::max(left, milliseconds(0)));
  // If receive_message failed before the deadline, it did not time out, so the server has closed
  // the connection.
  if (!received && Clock::now() < deadline) {
    throw CommError({.what = fmt::format("rank {} ended during the rendezvous", first),
                     .where = "start of the job",
                     .hint = fmt::format("see what rank {} printed", first)});
  }
  if (!received || reply.magic != kRendezvousMagic) {
    refuse({fmt::format(
                "the process at the ranks' rendezvous socket {}",
                received ? fmt::format("is not rank {} of this job", first) : "does not answer"),
            fmt::format("find the process that has the socket {}/{} open, or start the ranks with "
                        "fsdp-run, which needs no socket",
                        directory, kRendezvousSocket)});
  }
  // The texts are from another process and may lack their terminating zeros.
  reply.what.back() = reply.hint.back() = '\0';
  if (reply.accepted == 0) refuse({reply.what.data(), reply.hint.data()});
  return std::move(*received);
}

JobDescriptors join(const LaunchEnvironment& environment, RankRange local,
                    const std::string& directory, milliseconds timeout) {
  const Descriptor server = find_server(directory, Clock::now() + timeout);
  if (!server) {
    refuse({fmt::format("rank {} of {} did not arrive within {}", local.begin,
                        environment.world_size, seconds_text(timeout)),
            fmt::format("start rank {} with the same MASTER_PORT; if all ranks already run, do not "
                        "start a second process with RANK={}",
                        local.begin, environment.rank)});
  }
  JoinRequest request{.rank = environment.rank,
                      .world_size = environment.world_size,
                      .local_begin = local.begin,
                      .local_count = local.count,
                      .pid = getpid()};
  send_message(server, bytes_of(request), {});
  // The server replies at its own deadline at the latest. Its wait began before this process
  // connected, so one second more than `timeout` is enough.
  const auto deadline = Clock::now() + timeout + milliseconds(1000);
  std::vector<Descriptor> descriptors;
  // The number of descriptors per reply is limited, so several replies may be needed. The first
  // descriptor is that of the control segment.
  while (descriptors.size() < static_cast<size_t>(local.count) + 1) {
    std::ranges::move(next_reply(server, local.begin, directory, deadline),
                      std::back_inserter(descriptors));
  }
  JobDescriptors files;
  files.control = std::move(descriptors.front());
  files.heaps.assign(std::make_move_iterator(descriptors.begin() + 1),
                     std::make_move_iterator(descriptors.end()));
  return files;
}

// Returns a key that differs between two hosts of a job, because they may share a directory, for
// example if they are containers.
std::string key_of_host(const LaunchEnvironment& environment, RankRange local) {
  if (local.count == environment.world_size) return environment.job_key;
  return fmt::format("{} node {}", environment.job_key,
                     environment.node.empty() ? host_name() : environment.node);
}

}  // namespace

JobDescriptors inherited_job(const LaunchEnvironment& environment) {
  JobDescriptors files;
  // The first descriptor is that of the control segment. The descriptors of the heaps follow, by
  // rank.
  for (const int fd : environment.job_fds) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!files.control) {
      files.control = Descriptor(fd);
    } else {
      files.heaps.emplace_back(fd);
    }
  }
  return files;
}

JoinedJob rendezvous_in_directory(const LaunchEnvironment& environment, RankRange local,
                                  milliseconds timeout) {
  const std::string directory =
      private_directory_path(environment.runtime_dir, key_of_host(environment, local));
  if (environment.rank == local.begin) {
    // If the lock is taken, another process with this rank is already running. That process will
    // reject this process, which fails the whole job.
    if (Descriptor lock = lock_private_directory(directory)) {
      // Only this rank removes the directories that earlier jobs have left, once per start.
      remove_abandoned_directories(directory, kRendezvousSocket);
      auto server = std::make_unique<RendezvousServer>(environment.world_size, local, directory,
                                                       std::move(lock));
      JobDescriptors files = server->serve(timeout);
      return {std::move(files), std::move(server)};
    }
  }
  return {join(environment, local, directory, timeout), nullptr};
}

}  // namespace fsdp
