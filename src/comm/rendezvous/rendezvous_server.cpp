#include "comm/rendezvous/rendezvous_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "comm/job/collective_failures.h"
#include "comm/job/job_member.h"
#include "comm/rendezvous/private_directory.h"
#include "comm/rendezvous/unix_socket.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The server waits for this time after all ranks have arrived, because a second process with the
// same rank usually starts at the same time.
constexpr auto kSettle = milliseconds(250);
// The time for which the server watches for late processes. The processes of one job start within a
// shorter time, even if each one first loads large libraries.
constexpr auto kWatchFor = std::chrono::seconds(10);
constexpr auto kWatchStep = milliseconds(20);
// The longest wait for a client's request. A process of this job sends its request at once, and a
// silent client must not delay the others.
constexpr auto kSpeakWithin = milliseconds(1000);
// An error names at most this many missing ranks. The error only counts the rest.
constexpr int kNamedAtMost = 8;

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

}  // namespace

RendezvousServer::RendezvousServer(int world_size, RankRange local, std::string directory,
                                   Descriptor lock)
    : world_size_(world_size),
      local_(local),
      directory_(std::move(directory)),
      socket_path_(directory_ + "/" + kRendezvousSocket),
      lock_(std::move(lock)),
      pids_(static_cast<size_t>(local.count)) {
  // The first rank is this process. It does not connect, so it is registered here.
  pids_[0] = getpid();
  unlink(socket_path_.c_str());  // left by a dead run; the lock proves that it is unused
  listener_ = listen_at(socket_path_);
}

RendezvousServer::~RendezvousServer() {
  // If there is a watcher, its thread removes the directory when it ends.
  if (watcher_.joinable()) {
    watcher_.request_stop();
    watcher_.join();
  } else {
    remove_private_directory(directory_, kRendezvousSocket);
  }
}

JobDescriptors RendezvousServer::serve(milliseconds timeout) {
  if (const std::optional<Refusal> refusal = admit_all(Clock::now() + timeout, timeout)) {
    JoinReply reply = reply_of(*refusal);
    for (const Client& client : clients_) send_message(client.socket, bytes_of(reply), {});
    throw CommError({.what = refusal->what, .where = "start of the job", .hint = refusal->hint},
                    ExitCode::kConfiguration);
  }
  JobDescriptors files = create_job_files(world_size_, local_);
  hand_out(files);
  // Each process has received its descriptors, so the connections may be closed.
  clients_.clear();
  return files;
}

std::optional<RendezvousServer::Client> RendezvousServer::accept_client(
    milliseconds at_most) const {
  Client client{.socket = accept_within(listener_, at_most), .request = {}};
  if (!client.socket) return std::nullopt;
  // A client that sends no request, or an invalid one, is dropped, so that it does not block the
  // others.
  if (!receive_message(client.socket, bytes_of(client.request), kSpeakWithin)) return std::nullopt;
  if (client.request.magic != kRendezvousMagic) return std::nullopt;
  return client;
}

std::optional<Refusal> RendezvousServer::admit_all(Clock::time_point deadline,
                                                   milliseconds timeout) {
  std::optional<Refusal> refusal;
  bool settling = false;
  while (true) {
    // The job is complete or refused. The server continues until kSettle has passed, so that
    // further processes get its answer, too.
    if (!settling && (refusal || !std::count(pids_.begin(), pids_.end(), 0))) {
      settling = true;
      deadline = Clock::now() + kSettle;
    }
    const milliseconds left = left_until(deadline);
    if (left == milliseconds(0)) break;
    std::optional<Client> client = accept_client(left);
    if (!client) continue;
    const std::optional<Refusal> objection = admit(client->request);
    if (!refusal) refusal = objection;
    clients_.push_back(std::move(*client));
  }
  if (refusal || settling) return refusal;
  return missing(timeout);
}

std::optional<Refusal> RendezvousServer::admit(const JoinRequest& request) {
  if (request.world_size != world_size_) {
    return Refusal{fmt::format("WORLD_SIZE={} on rank {} (pid {}), but WORLD_SIZE={} on rank {} "
                               "(pid {})",
                               world_size_, local_.begin, getpid(), request.world_size,
                               request.rank, request.pid),
                   "start all ranks with the same WORLD_SIZE"};
  }
  if (request.rank < 0 || request.rank >= world_size_) {
    return Refusal{fmt::format("a process has RANK={}, expected less than WORLD_SIZE={}",
                               request.rank, world_size_),
                   "set RANK to a number from 0 to WORLD_SIZE - 1"};
  }
  const RankRange theirs{request.local_begin, request.local_count};
  if (theirs != local_ || !local_.contains(request.rank)) {
    return Refusal{fmt::format("this host has {} by the variables of rank {} (pid {}), but {} by "
                               "those of rank {} (pid {})",
                               describe(local_), local_.begin, getpid(), describe(theirs),
                               request.rank, request.pid),
                   "set LOCAL_WORLD_SIZE to the number of ranks on this host, and LOCAL_RANK to "
                   "RANK minus the host's lowest RANK"};
  }
  int32_t& pid = pid_of(request.rank);
  if (pid != 0) {
    return Refusal{fmt::format("two processes have RANK={}: pid {} and pid {}", request.rank, pid,
                               request.pid),
                   "give every process its own RANK, and every job its own MASTER_PORT"};
  }
  pid = request.pid;
  return std::nullopt;
}

Refusal RendezvousServer::missing(milliseconds timeout) const {
  std::string ranks;
  int more = 0;
  for (int i = 0, named = 0; i < local_.count; ++i) {
    if (pids_[static_cast<size_t>(i)] != 0) continue;
    if (named == kNamedAtMost) {
      ++more;
    } else {
      ranks += fmt::format("{}{}", named++ == 0 ? "" : ", ", local_.begin + i);
    }
  }
  if (more > 0) ranks += fmt::format(" and {} more", more);
  return {fmt::format("rank {} of {} did not arrive within {}", ranks, world_size_,
                      seconds_text(timeout)),
          "start every rank from 0 to WORLD_SIZE - 1, with the same MASTER_PORT"};
}

void RendezvousServer::hand_out(const JobDescriptors& files) const {
  std::vector<int> descriptors{files.control.get()};
  for (const Descriptor& heap : files.heaps) descriptors.push_back(heap.get());
  JoinReply reply;
  for (const Client& client : clients_) {
    // The kernel passes at most 253 descriptors with one message, so several messages may be
    // needed.
    for (std::span<const int> rest(descriptors); !rest.empty();) {
      const auto now = rest.first(std::min(rest.size(), kDescriptorsAMessage));
      rest = rest.subspan(now.size());
      send_message(client.socket, bytes_of(reply), now);
    }
  }
}

void RendezvousServer::refuse_latecomers(std::shared_ptr<const JobMemory> memory) {
  // The thread holds `memory`, because it uses the control segment to fail the job.
  watcher_ = std::jthread(
      [this, memory = std::move(memory)](const std::stop_token& stop) { watch(stop, *memory); });
}

void RendezvousServer::watch(const std::stop_token& stop, const JobMemory& memory) {
  const auto deadline = Clock::now() + kWatchFor;
  while (!stop.stop_requested() && Clock::now() < deadline) {
    if (const auto client = accept_client(kWatchStep)) refuse_latecomer(*client, memory);
  }
  // No process can connect any more. Processes that have connected still get their answer.
  unlink(socket_path_.c_str());
  while (const auto client = accept_client(milliseconds(0))) refuse_latecomer(*client, memory);
  remove_private_directory(directory_, kRendezvousSocket);
}

void RendezvousServer::refuse_latecomer(const Client& client, const JobMemory& memory) {
  // All ranks of the host are present, so each further process is refused. The text names both
  // processes.
  const std::optional<Refusal> refusal = admit(client.request);
  if (!refusal) return;
  report_failure(
      memory.control(),
      {.rank = -1,
       .code = ExitCode::kConfiguration,
       .text = {.what = refusal->what, .where = "start of the job", .hint = refusal->hint}});
  JoinReply reply = reply_of(*refusal);
  send_message(client.socket, bytes_of(reply), {});
}

}  // namespace fsdp
