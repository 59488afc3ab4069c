#include "comm/meeting_host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "comm/job.h"
#include "comm/private_directory.h"
#include "comm/unix_socket.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// After all have come: a second process with one of the ranks usually starts at the same time.
constexpr auto kSettle = milliseconds(250);
// Processes of one start differ by less, also where each loads large libraries first.
constexpr auto kWatchFor = std::chrono::seconds(10);
constexpr auto kWatchStep = milliseconds(20);
constexpr auto kSpeakWithin = milliseconds(1000);

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

}  // namespace

MeetingHost::MeetingHost(const LaunchEnvironment& environment, std::string directory,
                         Descriptor lock)
    : world_size_(environment.world_size),
      directory_(std::move(directory)),
      socket_path_(directory_ + "/" + kMeetingSocket),
      lock_(std::move(lock)),
      pids_(environment.world_size) {
  pids_[0] = getpid();
  unlink(socket_path_.c_str());  // of a run that died; the lock says that no other uses it
  listener_ = listen_at(socket_path_);
}

MeetingHost::~MeetingHost() {
  if (watcher_.joinable()) {
    watcher_.request_stop();
    watcher_.join();
  } else {
    remove_private_directory(directory_, kMeetingSocket);
  }
}

JobDescriptors MeetingHost::serve(milliseconds timeout) {
  if (const std::optional<Refusal> refusal = admit_all(Clock::now() + timeout, timeout)) {
    Answer answer = answer_of(*refusal);
    for (const Guest& guest : guests_) send_message(guest.socket, bytes_of(answer), {});
    throw CommError(
        {.what = refusal->what, .where = "start of the job", .cause = {}, .hint = refusal->hint},
        ExitCode::kConfiguration);
  }
  JobDescriptors files = create_job_files(world_size_);
  hand_out(files);
  guests_.clear();
  return files;
}

std::optional<MeetingHost::Guest> MeetingHost::greet(milliseconds at_most) const {
  Guest guest{.socket = accept_within(listener_, at_most), .hello = {}};
  if (!guest.socket) return std::nullopt;
  if (!receive_message(guest.socket, bytes_of(guest.hello), kSpeakWithin)) return std::nullopt;
  if (guest.hello.magic != kMeetingMagic) return std::nullopt;
  return guest;
}

std::optional<Refusal> MeetingHost::admit_all(Clock::time_point deadline, milliseconds timeout) {
  std::optional<Refusal> refusal;
  bool settling = false;
  while (true) {
    // Complete, or refused: a last look for others who should hear of it.
    if (!settling && (refusal || !std::count(pids_.begin(), pids_.end(), 0))) {
      settling = true;
      deadline = Clock::now() + kSettle;
    }
    const milliseconds left = left_until(deadline);
    if (left == milliseconds(0)) break;
    std::optional<Guest> guest = greet(left);
    if (!guest) continue;
    const std::optional<Refusal> objection = admit(guest->hello);
    if (!refusal) refusal = objection;
    guests_.push_back(std::move(*guest));
  }
  if (refusal || settling) return refusal;
  return missing(timeout);
}

std::optional<Refusal> MeetingHost::admit(const Hello& hello) {
  if (hello.world_size != world_size_) {
    return Refusal{fmt::format("WORLD_SIZE={} on rank 0 (pid {}), but WORLD_SIZE={} on rank {} "
                               "(pid {})",
                               world_size_, getpid(), hello.world_size, hello.rank, hello.pid),
                   "start all ranks with the same WORLD_SIZE"};
  }
  if (hello.rank < 0 || hello.rank >= world_size_) {
    return Refusal{fmt::format("a process with RANK={} of {}", hello.rank, world_size_),
                   "ranks are 0 to WORLD_SIZE - 1"};
  }
  if (pids_[hello.rank] != 0) {
    return Refusal{fmt::format("two processes have RANK={}: pid {} and pid {}", hello.rank,
                               pids_[hello.rank], hello.pid),
                   "give every process a RANK of its own, and every job a MASTER_PORT of its own"};
  }
  pids_[hello.rank] = hello.pid;
  return std::nullopt;
}

Refusal MeetingHost::missing(milliseconds timeout) const {
  std::string ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (pids_[rank] == 0) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return {fmt::format("rank {} of {} did not arrive within {:.1f} s", ranks, world_size_,
                      std::chrono::duration<double>(timeout).count()),
          "start every rank from 0 to WORLD_SIZE - 1, with the same MASTER_PORT"};
}

void MeetingHost::hand_out(const JobDescriptors& files) const {
  std::vector<int> descriptors{files.control.get()};
  for (const Descriptor& heap : files.heaps) descriptors.push_back(heap.get());
  Answer answer;
  for (const Guest& guest : guests_) {
    for (std::span<const int> rest(descriptors); !rest.empty();) {
      const auto now = rest.first(std::min(rest.size(), kDescriptorsAMessage));
      rest = rest.subspan(now.size());
      send_message(guest.socket, bytes_of(answer), now);
    }
  }
}

void MeetingHost::refuse_latecomers(std::shared_ptr<const JobMemory> memory) {
  watcher_ = std::jthread(
      [this, memory = std::move(memory)](const std::stop_token& stop) { watch(stop, *memory); });
}

void MeetingHost::watch(const std::stop_token& stop, const JobMemory& memory) {
  const auto deadline = Clock::now() + kWatchFor;
  while (!stop.stop_requested() && Clock::now() < deadline) {
    if (const auto guest = greet(kWatchStep)) refuse_latecomer(*guest, memory);
  }
  // Nobody can come any more; those that have come hear of it.
  unlink(socket_path_.c_str());
  while (const auto guest = greet(milliseconds(0))) refuse_latecomer(*guest, memory);
  remove_private_directory(directory_, kMeetingSocket);
}

void MeetingHost::refuse_latecomer(const Guest& guest, const JobMemory& memory) {
  const std::optional<Refusal> refusal = admit(guest.hello);
  if (!refusal) return;
  report_failure(memory.control(), {.rank = -1,
                                    .code = ExitCode::kConfiguration,
                                    .text = {.what = refusal->what,
                                             .where = "start of the job",
                                             .cause = {},
                                             .hint = refusal->hint}});
  Answer answer = answer_of(*refusal);
  send_message(guest.socket, bytes_of(answer), {});
}

}  // namespace fsdp
