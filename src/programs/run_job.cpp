#include "run_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "base/standard_streams.h"
#include "comm/job/job_progress.h"
#include "fsdp/error.h"
#include "host_meeting.h"
#include "launcher_signals.h"
#include "memory_folder.h"

namespace fsdp {
namespace {

// The time for further hosts, unless --restart-after is set.
constexpr auto kWaitForHosts = std::chrono::seconds(30);

void say(const std::string& line) {
  if (!line.empty()) write_error_line(line);
}

// How the ranks of this host ended.
struct EndOfRanks {
  FailedStart end;
  bool was_stopped = false;
};

// Starts the ranks of this host once, and prints how they ended.
EndOfRanks run_once(LaunchOptions options) {
  const JobProgress progress = JobProgress::create();
  options.progress_file = progress.descriptor();
  const JobEnd end = RankProcesses(options).wait();
  // The error line of the rank that failed is printed first, then the launcher's line about how
  // that rank ended.
  say(end.rank_line);
  say(end.line);
  say(end.log_line);
  return {.end = {.code = end.code,
                  .rank = end.rank,
                  .wait_status = end.wait_status,
                  .out_of_memory = end.out_of_memory,
                  .step = progress.step(),
                  .saved = progress.saved()},
          .was_stopped = end.was_stopped};
}

void say_reason(const Restarts& restarts) {
  if (!restarts.reason().empty()) say("fsdp: note: " + restarts.reason());
}

int run_alone(LaunchOptions options, const RestartOptions& restart_options) {
  Restarts restarts(restart_options, options.ranks);
  std::optional<MemoryFolder> memory;
  if (options.max_restarts > 0) options.memory_folder = memory.emplace().path();
  for (;; ++options.attempt) {
    const EndOfRanks ended = run_once(options);
    if (ended.end.code == 0 || ended.was_stopped) return ended.end.code;
    const auto next = restarts.after(ended.end);
    say_reason(restarts);
    if (!next) return ended.end.code;
    options.ranks = next->ranks;
    if (const int signal = pause_for(next->pause)) return 128 + signal;
  }
}

// Sets the place of this host in a start of the job.
void set_start(const JobStart& start, LaunchOptions& options) {
  HostOptions& hosts = options.hosts;
  const auto own = std::ranges::find(start.hosts, hosts.number, &HostMember::host);
  hosts.count = static_cast<int>(start.hosts.size());
  hosts.index = static_cast<int>(own - start.hosts.begin());
  options.attempt = start.attempt;
}

// Runs the job on host 0, whose launcher decides about restarts.
int lead(LaunchOptions options, const RestartOptions& restart_options, HostMeeting& meeting) {
  const HostOptions& hosts = options.hosts;
  Restarts restarts(restart_options, hosts.most * options.ranks);
  const auto wait = restart_options.pause.value_or(kWaitForHosts);
  HostGathering gathering({.least = hosts.least, .most = hosts.most, .wait = wait},
                          HostGathering::Clock::now());
  std::chrono::seconds pause{0};
  for (int last = -1;; ++last) {
    const NextStart next = meeting.gather(gathering, pause, last);
    if (!next.start) return next.code;
    set_start(*next.start, options);
    const EndOfRanks ended = run_once(options);
    if (ended.was_stopped) return ended.end.code;
    gathering.end_start(options.attempt, next.start->hosts, HostGathering::Clock::now());
    if (const int signal = meeting.collect(gathering)) return 128 + signal;
    const FailedStart cause = gathering.cause(ended.end);
    if (cause.code == 0) return 0;
    const auto again = restarts.after(cause);
    say_reason(restarts);
    if (!again) return cause.code;
    pause = again->pause;
  }
}

// Runs the job on another host. Its launcher starts ranks when that of host 0 says so.
int follow(LaunchOptions options, HostMeeting& meeting) {
  FailedStart own;
  for (options.attempt = -1;;) {
    const NextStart next = meeting.wait(options.attempt, own);
    // If host 0 ended well, this host may still have failed.
    if (!next.start) return next.code != 0 ? next.code : own.code;
    set_start(*next.start, options);
    try {
      const EndOfRanks ended = run_once(options);
      if (ended.was_stopped) return ended.end.code;
      own = ended.end;
    } catch (const Error& error) {  // for example, this host does not have the program
      meeting.report(options.attempt, {.code = error.exit_code()});
      throw;
    }
  }
}

int run_on_hosts(LaunchOptions options, const RestartOptions& restart_options,
                 HostMeeting& meeting) {
  if (options.hosts.number > 0) {
    try {
      return follow(std::move(options), meeting);
    } catch (const CommError& error) {
      throw CommError({.what = "fsdp-run on host 0 does not answer any more",
                       .where = error.text().what,
                       .cause = error.text().cause,
                       .hint = "see what host 0 printed, then start the job again on all hosts"});
    }
  }
  try {
    const int code = lead(std::move(options), restart_options, meeting);
    // After a signal to this launcher, the other hosts end because this host has ended.
    meeting.end(code > 128 ? static_cast<int>(ExitCode::kPeerFailed) : code);
    return code;
  } catch (const Error& error) {
    meeting.end(error.exit_code());
    throw;
  }
}

// Returns the flags that must be equal on all hosts.
std::string flags_of(const LaunchOptions& options, const RestartOptions& restarts) {
  const HostOptions& hosts = options.hosts;
  std::string text = fmt::format("-n {} --nnodes {}", options.ranks, hosts.least);
  if (hosts.most > hosts.least) text += fmt::format(":{}", hosts.most);
  text += fmt::format(" --max-restarts {}", options.max_restarts);
  if (restarts.pause) text += fmt::format(" --restart-after {}", restarts.pause->count());
  return text;
}

}  // namespace

int run_job(LaunchOptions options, const RestartOptions& restart_options) {
  // The first wait for host 0 must end at Ctrl-C, so signals are blocked later.
  std::optional<HostMeeting> meeting;
  if (options.hosts.agree_on_starts) {
    meeting.emplace(options.hosts, flags_of(options, restart_options));
  }
  // Ranks inherit the ignored SIGTTOU through exec. They run in their own process groups, which are
  // background groups of the terminal. With `stty tostop` the terminal would otherwise stop a
  // background process that writes.
  std::signal(SIGTTOU, SIG_IGN);
  // The launcher receives these signals by sigtimedwait. They are blocked before the first fork of
  // a rank, so that none is lost and none ends the launcher. The thread of RankOutput inherits the
  // mask.
  const sigset_t signals = launcher_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return meeting ? run_on_hosts(std::move(options), restart_options, *meeting)
                 : run_alone(std::move(options), restart_options);
}

}  // namespace fsdp
