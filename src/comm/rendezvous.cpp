#include "comm/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "comm/private_directory.h"
#include "comm/unix_socket.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array<char, 8> kMagic{'f', 's', 'd', 'p', 'm', 'e', 'e', 't'};
constexpr auto kSocket = "meet";
// After all have come: a second process with one of the ranks usually starts at the same time.
constexpr auto kSettle = milliseconds(250);

// What a rank says, and what rank 0 answers. Fixed sizes; nothing in them is trusted further.
struct Hello {
  std::array<char, 8> magic = kMagic;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t pid = 0;
};

struct Answer {
  std::array<char, 8> magic = kMagic;
  int32_t accepted = 0;
  std::array<char, 256> what{};
  std::array<char, 256> hint{};
};

struct Refusal {
  std::string what;
  std::string hint;
};

[[noreturn]] void refuse(const Refusal& refusal) {
  throw CommError(
      {.what = refusal.what, .where = "start of the job", .cause = {}, .hint = refusal.hint},
      ExitCode::kConfiguration);
}

template <class Message>
std::span<std::byte> bytes_of(Message& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

template <size_t N>
void put(std::array<char, N>& field, const std::string& text) {
  std::copy_n(text.data(), std::min(text.size(), N - 1), field.data());
}

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

// Rank 0's side.
class Host {
 public:
  Host(const LaunchEnvironment& environment, std::string directory)
      : world_size_(environment.world_size),
        directory_(std::move(directory)),
        socket_path_(directory_ + "/" + kSocket),
        pids_(environment.world_size) {
    pids_[0] = getpid();
    unlink(socket_path_.c_str());  // of a run that died; the lock says that no other uses it
    listener_ = listen_at(socket_path_);
  }
  ~Host() { remove_private_directory(directory_, kSocket); }

  JobDescriptors serve(milliseconds timeout) {
    std::optional<Refusal> refusal = admit_all(Clock::now() + timeout, timeout);
    JobDescriptors files;
    if (!refusal) files = create_job_files(world_size_);
    answer_all(refusal, files);
    if (refusal) refuse(*refusal);
    return files;
  }

 private:
  std::optional<Refusal> admit_all(Clock::time_point deadline, milliseconds timeout) {
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
      Descriptor client = accept_within(listener_, left);
      if (!client) continue;
      Hello hello;
      const auto received = receive_message(client, bytes_of(hello), milliseconds(1000));
      if (!received || hello.magic != kMagic) continue;
      const std::optional<Refusal> objection = admit(hello);
      if (!refusal) refusal = objection;
      clients_.push_back(std::move(client));
    }
    if (refusal || settling) return refusal;
    return missing(timeout);
  }

  std::optional<Refusal> admit(const Hello& hello) {
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
                     "give every process a RANK of its own, and every job a MASTER_PORT of its "
                     "own"};
    }
    pids_[hello.rank] = hello.pid;
    return std::nullopt;
  }

  Refusal missing(milliseconds timeout) const {
    std::string ranks;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (pids_[rank] == 0) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    }
    return {fmt::format("rank {} of {} did not arrive within {:.1f} s", ranks, world_size_,
                        std::chrono::duration<double>(timeout).count()),
            "start every rank from 0 to WORLD_SIZE - 1, with the same MASTER_PORT"};
  }

  void answer_all(const std::optional<Refusal>& refusal, const JobDescriptors& files) const {
    Answer answer{.accepted = refusal ? 0 : 1};
    if (refusal) {
      put(answer.what, refusal->what);
      put(answer.hint, refusal->hint);
    }
    std::vector<int> descriptors;
    if (!refusal) {
      descriptors.push_back(files.control.get());
      for (const Descriptor& heap : files.heaps) descriptors.push_back(heap.get());
    }
    for (const Descriptor& client : clients_) {
      std::span<const int> rest(descriptors);
      do {
        const auto now = rest.first(std::min(rest.size(), kDescriptorsAMessage));
        rest = rest.subspan(now.size());
        send_message(client, bytes_of(answer), now);
      } while (!rest.empty());
    }
  }

  int world_size_;
  std::string directory_;
  std::string socket_path_;
  Descriptor listener_;
  std::vector<int32_t> pids_;  // by rank; 0: has not come
  std::vector<Descriptor> clients_;
};

Descriptor find_host(const std::string& directory, Clock::time_point deadline) {
  while (true) {
    if (check_private_directory(directory)) {
      if (Descriptor host = connect_to(directory + "/" + kSocket)) return host;
    }
    if (Clock::now() > deadline) return {};
    std::this_thread::sleep_for(milliseconds(5));
  }
}

JobDescriptors join(const LaunchEnvironment& environment, const std::string& directory,
                    milliseconds timeout) {
  const double seconds = std::chrono::duration<double>(timeout).count();
  const Descriptor host = find_host(directory, Clock::now() + timeout);
  if (!host) {
    refuse({fmt::format("rank 0 of {} did not arrive within {:.1f} s", environment.world_size,
                        seconds),
            fmt::format("start rank 0, too, with the same MASTER_PORT; a job that is complete "
                        "admits no second process for RANK={}",
                        environment.rank)});
  }
  Hello hello{.rank = environment.rank, .world_size = environment.world_size, .pid = getpid()};
  send_message(host, bytes_of(hello), {});
  std::vector<Descriptor> descriptors;
  while (descriptors.size() < static_cast<size_t>(environment.world_size) + 1) {
    Answer answer;
    // Rank 0 answers at its own deadline, which began when it started.
    auto received = receive_message(host, bytes_of(answer), timeout + milliseconds(1000));
    if (!received || answer.magic != kMagic) {
      throw CommError({.what = "rank 0 ended or hung while the ranks met",
                       .where = "start of the job",
                       .cause = {},
                       .hint = "see what rank 0 printed"});
    }
    answer.what.back() = answer.hint.back() = '\0';
    if (answer.accepted == 0) refuse({answer.what.data(), answer.hint.data()});
    std::move(received->begin(), received->end(), std::back_inserter(descriptors));
  }
  JobDescriptors files;
  files.control = std::move(descriptors.front());
  files.heaps.assign(std::make_move_iterator(descriptors.begin() + 1),
                     std::make_move_iterator(descriptors.end()));
  return files;
}

}  // namespace

JobDescriptors inherited_job(const LaunchEnvironment& environment) {
  JobDescriptors files;
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

JobDescriptors meet_in_directory(const LaunchEnvironment& environment, milliseconds timeout) {
  const std::string directory =
      private_directory_path(environment.runtime_dir, environment.job_key);
  if (environment.rank == 0) {
    const Descriptor lock = lock_private_directory(directory);
    // Without the lock there is a rank 0 already: it will refuse this one, and all others with it.
    if (lock) return Host(environment, directory).serve(timeout);
  }
  return join(environment, directory, timeout);
}

}  // namespace fsdp
