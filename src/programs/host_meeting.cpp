#include "host_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "base/standard_streams.h"
#include "comm/mesh_parts.h"
#include "comm/store/master_address.h"
#include "comm/store/open_job_store.h"
#include "comm/store/store_text.h"
#include "comm/store/tcp_socket.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "launcher_signals.h"
#include "side_process.h"

namespace fsdp {
namespace {

using Clock = HostGathering::Clock;
using std::chrono::milliseconds;

constexpr auto kBeat = milliseconds(250);
constexpr auto kLookEvery = milliseconds(100);
constexpr auto kReplyWithin = std::chrono::seconds(30);
constexpr auto kHostZeroWithin = std::chrono::minutes(10);
constexpr auto kLookForHostZero = milliseconds(1000);  // before a note says that it is missing
constexpr auto kResolveWithin = std::chrono::seconds(10);
// The time for which the store outlives the launcher of host 0, so that the other launchers can
// read the end of the job.
constexpr auto kHeardWithin = 4 * kBeat;
constexpr auto kQuietFor = std::chrono::seconds(5);  // before a note says which hosts are missing

constexpr char kJob[] = "launchers/job", kPlan[] = "launchers/plan";
constexpr std::string_view kEnd = "end ";

uint64_t new_id() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

void say_note(const std::string& text) { write_error_line("fsdp: note: " + text); }

LaunchEnvironment environment_of(const HostOptions& hosts) {
  const auto lookup = [](const char* name) {
    return std::string_view(name) == "FSDP_ADDRESS" ? std::getenv(name) : nullptr;
  };
  LaunchEnvironment environment = read_launch_environment(lookup);
  environment.master_addr = hosts.address;
  environment.master_port = hosts.port;
  environment.job_token_file = hosts.token_file;
  environment.no_token = hosts.token_file.empty();
  return environment;
}

// Starts the process that serves the store. Returns the descriptor that keeps it.
Descriptor serve(const MasterAddress& master, const StoreToken& token) {
  Descriptor listener = listen_at_master(master);
  const int socket = listener.get();
  Descriptor server = start_side_process({socket}, [&](const std::function<void()>& wait) {
    const TokenStoreServer store(std::move(listener), token.key);
    wait();
    std::this_thread::sleep_for(kHeardWithin);
  });
  if (server) return server;
  throw DeviceError({.what = "the process that serves the launchers' store cannot be started",
                     .hint = "raise the limits of open files and processes (ulimit -n, -u)"});
}

std::string names_of(const std::vector<HostMember>& hosts) {
  std::vector<int> numbers;
  for (const HostMember& each : hosts) numbers.push_back(each.host);
  return fmt::format("host{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

std::string missing_in(const std::vector<HostMember>& waiting, int most) {
  std::vector<HostMember> missing;
  for (int host = 1; host < most; ++host) {
    if (std::ranges::find(waiting, host, &HostMember::host) == waiting.end()) {
      missing.push_back({.host = host});
    }
  }
  return names_of(missing);
}

}  // namespace

HostMeeting::HostMeeting(const HostOptions& hosts, const std::string& job)
    : hosts_(hosts), id_(new_id()) {
  for (int host = 1; host < hosts_.most; ++host) {
    calls_.push_back(fmt::format("launchers/host/{}", host));
  }
  const LaunchEnvironment environment = environment_of(hosts_);
  const StoreToken token = read_token(environment);
  const MasterAddress master = find_master(environment, kResolveWithin);
  if (hosts_.number == 0) {
    server_ = serve(master, token);
    if (!token.is_secret) {
      write_error_line(
          warning_line(warning_without_token(master, token),
                       ErrorPlace{.rank = 0, .world_size = 1, .host = host_name(), .step = -1}));
    }
  }
  if (hosts_.number > 0 && connect_within(master.addresses.front(), kLookForHostZero).error != 0) {
    say_note(fmt::format("waiting for fsdp-run on host 0 at {}:{}", master.host, master.port));
  }
  TokenStore::Parts parts{.host = master.host,
                          .port = master.port,
                          .addresses = master.addresses,
                          .token = token,
                          .timeout = kHostZeroWithin};
  // The first connection waits until host 0 serves the store. Later replies arrive sooner.
  { const TokenStore first(parts); }
  parts.timeout = kReplyWithin;
  store_ = std::make_unique<TokenStore>(parts);
  if (hosts_.number == 0) {
    store_->set(kJob, job);
  } else {
    require_equal_job(job);
  }
}

void HostMeeting::require_equal_job(const std::string& job) {
  const bool is_there = store_->wait({kJob}, kReplyWithin);
  const std::string theirs = is_there ? store_->get({kJob}).front() : "no --max-restarts";
  if (theirs == job) return;
  throw InvalidArgument(
      {.what = fmt::format("fsdp-run on host {} has {}, but fsdp-run on host 0 has {}",
                           hosts_.number, job, theirs),
       .where = "command line",
       .hint = "use the same flags on all hosts, except --node-rank"});
}

void HostMeeting::hear(HostGathering& gathering) {
  const std::vector<bool> have = store_->have(calls_);
  std::vector<std::string> keys;
  std::vector<int> numbers;
  for (size_t i = 0; i < have.size(); ++i) {
    if (!have[i]) continue;
    keys.push_back(calls_[i]);
    numbers.push_back(static_cast<int>(i) + 1);
  }
  if (keys.empty()) return;
  const std::vector<std::string> texts = store_->get(keys);
  for (size_t i = 0; i < texts.size(); ++i) {
    gathering.hear(numbers[i], host_call_of(texts[i]), Clock::now());
  }
}

JobStart HostMeeting::announce(JobStart start) {
  std::string text = std::to_string(start.attempt);
  for (const HostMember& each : start.hosts) text += fmt::format(" {}:{}", each.host, each.id);
  store_->set(kPlan, text);
  if (std::ssize(start.hosts) < hosts_.most) {
    say_note(fmt::format("the job starts on {}, without {}", names_of(start.hosts),
                         missing_in(start.hosts, hosts_.most)));
  }
  return start;
}

NextStart HostMeeting::gather(HostGathering& gathering, milliseconds pause, int last) {
  const auto begin = Clock::now();
  bool is_told = false;
  for (;;) {
    hear(gathering);
    const auto now = Clock::now();
    const std::vector<HostMember> waiting = gathering.waiting(now);
    switch (gathering.state(now, pause)) {
      case HostGathering::State::kWaits:
        break;
      case HostGathering::State::kStarts:
        // The keys of the last start's ranks are not needed any more.
        if (last >= 0) store_->forget_all(fmt::format("fsdp/{}/", last));
        return {.start = announce({.attempt = last + 1, .hosts = waiting})};
      case HostGathering::State::kGivesUp:
        throw CommError(
            {.what = fmt::format("{} did not come", missing_in(waiting, hosts_.most)),
             .where = "start of the job",
             .hint = "start fsdp-run with the same flags on these hosts, and see what it prints"});
    }
    if (!is_told && now - begin > kQuietFor + pause) {
      say_note(fmt::format("waiting for {}", missing_in(waiting, hosts_.most)));
      is_told = true;
    }
    if (const int signal = pause_for(kLookEvery)) return {.code = 128 + signal};
  }
}

int HostMeeting::collect(HostGathering& gathering) {
  for (hear(gathering); !gathering.has_reports(Clock::now()); hear(gathering)) {
    if (const int signal = pause_for(kLookEvery)) return signal;
  }
  return 0;
}

void HostMeeting::end(int code) { store_->set(kPlan, fmt::format("{}{}", kEnd, code)); }

std::string HostMeeting::plan() {
  return store_->has(kPlan) ? store_->get({kPlan}).front() : std::string();
}

// Returns the start that the plan describes.
std::optional<JobStart> HostMeeting::start_in(const std::string& plan) const {
  if (plan.empty()) return std::nullopt;
  JobStart start{.attempt = number_in<int>(plan)};
  std::vector<std::string> words = parts_of(plan, ' ', static_cast<size_t>(hosts_.most) + 1);
  words.erase(words.begin());
  for (const std::string& word : words) {
    if (word.empty()) break;
    const std::vector<std::string> numbers = parts_of(word, ':', 2);
    start.hosts.push_back(
        {.host = number_in<int>(numbers[0]), .id = number_in<uint64_t>(numbers[1])});
  }
  return start;
}

void HostMeeting::report(int attempt, const FailedStart& own) {
  store_->set(calls_[static_cast<size_t>(hosts_.number) - 1],
              text_of({.id = id_, .beat = ++beat_, .attempt = attempt, .end = own}));
}

NextStart HostMeeting::wait(int attempt, const FailedStart& own) {
  for (;;) {
    report(attempt, own);
    const std::string now = plan();
    if (now.starts_with(kEnd)) return {.code = number_in<int>(now.substr(kEnd.size()))};
    const std::optional<JobStart> start = start_in(now);
    if (start && start->attempt > attempt) {
      const auto own_entry = std::ranges::find(start->hosts, hosts_.number, &HostMember::host);
      if (own_entry != start->hosts.end() && own_entry->id == id_) return {.start = start};
      // An earlier launcher of this host may be in the plan.
      if (!std::exchange(told_to_wait_, true)) {
        say_note(fmt::format("host {} waits: it takes part from the next start of the job on",
                             hosts_.number));
      }
    }
    if (const int signal = pause_for(kBeat)) return {.code = 128 + signal};
  }
}

}  // namespace fsdp
