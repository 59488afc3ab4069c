#include "fsdp_run_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/cpu_features.h"
#include "comm/job/collective_failures.h"
#include "comm/job/job_member.h"
#include "comm/job/process_end.h"
#include "comm/mesh_parts.h"
#include "fsdp/error.h"
#include "launcher_signals.h"

namespace fsdp {
namespace {

// After a failure, the time for other ranks to end.
constexpr auto kGrace = std::chrono::seconds(3);
constexpr auto kSameRequest = std::chrono::seconds(1);  // two signals within it count as one
constexpr auto kLookEvery = std::chrono::milliseconds(100);

// Returns the number of processes that the kernel has killed for lack of memory. Returns 0 if the
// kernel does not count them.
int64_t oom_kills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  for (int64_t count = 0; file >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

bool ended_well(int wait_status) { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

void set_number(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }

}  // namespace

RankProcesses::RankProcesses(LaunchOptions options)
    : options_(std::move(options)),
      files_(create_job_files(options_.world_size(), options_.local())),
      control_memory_(files_.control,
                      ControlSegment::bytes_for(options_.world_size(), options_.local()),
                      "the job's shared memory"),
      control_(control_memory_.data(), options_.world_size(), options_.local()),
      logs_({.folder = options_.log_dir,
             .attempt = options_.attempt,
             .host = options_.hosts.most > 1 ? options_.hosts.number : -1}),
      output_(logs_.exist() ? logs_.path(options_.local().begin, "out") : "", options_.all_errors),
      ranks_(options_.ranks),
      oom_kills_before_(oom_kills()) {
  // If there is a launcher, a rank that sees a dead peer first waits until the launcher reports how
  // the peer ended.
  control_.header().has_launcher.store(1);
  logs_.create_folder();
  try {
    for (int i = 0; i < options_.ranks; ++i) {
      ranks_[i].number = options_.local().begin + i;
      start(ranks_[i]);
    }
  } catch (...) {
    kill_all();  // the destructor does not run if a constructor throws
    throw;
  }
  // The launcher closes its descriptors of the ranks' heaps. So only the ranks hold this shared
  // memory, and it is freed when they end.
  files_.heaps.clear();
  output_.start();  // after the last fork, because it starts a thread
}

RankProcesses::~RankProcesses() { kill_all(); }

void RankProcesses::start(Rank& rank) {
  // If exec fails, the child writes errno into the pipe. If exec succeeds, the kernel closes the
  // child's end of the pipe (O_CLOEXEC), and the read below returns 0 bytes.
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) {
    throw DeviceError({.what = fmt::format("a pipe for rank {} cannot be created", rank.number),
                       .cause = std::strerror(errno),
                       .hint = "raise the limit of open files (ulimit -n)"});
  }
  const Descriptor read_end(pipe_ends[0]);
  Descriptor write_end(pipe_ends[1]);
  const pid_t launcher = getpid();
  const pid_t pid = fork();  // no other thread exists, so the child may allocate
  if (pid < 0) {
    throw DeviceError({.what = fmt::format("rank {} cannot be started", rank.number),
                       .where = "fork",
                       .cause = std::strerror(errno),
                       .hint = "raise the limit of processes (ulimit -u)"});
  }
  if (pid == 0) become_rank(rank.number, launcher, write_end.get());
  rank.pid = pid;
  write_end = Descriptor();  // so that the read below sees the end of the pipe
  int error = 0;
  if (read(read_end.get(), &error, sizeof error) == static_cast<ssize_t>(sizeof error)) {
    throw InvalidArgument(
        {.what = fmt::format("'{}' cannot be started", options_.command.front()),
         .cause = std::strerror(error),
         .hint = "check the path of the program: fsdp-run -n N [FLAGS] PROGRAM [ARGUMENTS]"},
        ExitCode::kUsage);
  }
}

void RankProcesses::become_rank(int rank, pid_t launcher, int error_pipe) {
  setpgid(0, 0);  // one kill then reaches the rank and its children
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // the launcher died before prctl
  // exec keeps the signal mask and ignored signals, so the launcher's settings are undone, except
  // SIGTTOU (fsdp_run.cpp).
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGXFSZ, SIG_DFL);
  export_environment(rank);
  redirect_output(rank);
  std::vector<char*> arguments;
  for (const std::string& word : options_.command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_pipe, &error, sizeof error);
  _exit(127);
}

void RankProcesses::export_environment(int rank) const {
  set_number("RANK", rank);
  set_number("WORLD_SIZE", options_.world_size());
  set_number("LOCAL_RANK", rank - options_.local().begin);
  set_number("LOCAL_WORLD_SIZE", options_.ranks);
  if (!options_.hosts.address.empty()) export_hosts();
  // Divides the cores of the host among its ranks. If OMP_NUM_THREADS were not set, each rank would
  // start a thread for every core of the host.
  if (getenv("OMP_NUM_THREADS") == nullptr) {
    set_number("OMP_NUM_THREADS", std::max(1, usable_cores() / options_.ranks));
  }
  if (options_.max_restarts > 0) {
    set_number("TORCHELASTIC_RESTART_COUNT", options_.attempt);
    set_number("TORCHELASTIC_MAX_RESTARTS", options_.max_restarts);
    if (!options_.memory_folder.empty()) {
      setenv("FSDP_MEMORY_DIR", options_.memory_folder.c_str(), 1);
    }
    set_number("FSDP_PROGRESS_FD", options_.progress_file);
    fcntl(options_.progress_file, F_SETFD, 0);
  }
  if (options_.world_size() == 1) return;  // a single rank shares no memory
  // Close-on-exec is cleared only in this child. The rank maps the job's memory from these
  // descriptors.
  std::string descriptors = std::to_string(files_.control.get());
  fcntl(files_.control.get(), F_SETFD, 0);
  for (const Descriptor& heap : files_.heaps) {
    descriptors += fmt::format(",{}", heap.get());
    fcntl(heap.get(), F_SETFD, 0);
  }
  setenv("FSDP_JOB_FDS", descriptors.c_str(), 1);
}

void RankProcesses::export_hosts() const {
  const HostOptions& hosts = options_.hosts;
  setenv("MASTER_ADDR", hosts.address.c_str(), 1);
  set_number("MASTER_PORT", hosts.port);
  set_number("GROUP_RANK", hosts.index);
  set_number("FSDP_NODE", hosts.index);
  set_number("TORCHELASTIC_RESTART_COUNT", options_.attempt);
  if (hosts.agree_on_starts) {
    set_number("FSDP_LAUNCHER_STORE", 1);
  } else {
    unsetenv("FSDP_LAUNCHER_STORE");
  }
  // The ranks have a store of their own, even if torchrun has started this process.
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  if (hosts.token_file.empty()) {
    unsetenv("FSDP_JOB_TOKEN_FILE");
    setenv("FSDP_NO_TOKEN", "1", 1);
  } else {
    unsetenv("FSDP_NO_TOKEN");
    setenv("FSDP_JOB_TOKEN_FILE", hosts.token_file.c_str(), 1);
  }
}

void RankProcesses::redirect_output(int rank) const {
  // The rank's process group is not the terminal's foreground group. Reading from the terminal
  // would stop the rank.
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  output_.become_stderr();
  logs_.redirect(rank);
}

JobEnd RankProcesses::wait() {
  const sigset_t signals = launcher_signals();
  const timespec look_every{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kLookEvery).count()};
  reap();
  while (!all_ended()) {
    // Several SIGCHLD can merge into one signal, and the grace period needs a clock, so all ranks
    // are checked after every signal and every 100 ms.
    const int signal = sigtimedwait(&signals, nullptr, &look_every);
    if (signal > 0 && signal != SIGCHLD) on_signal(signal);
    reap();
    if (kill_at_ && Clock::now() > *kill_at_) kill_all();
  }
  output_.finish();
  JobEnd end = judge();
  try {
    log_ends();
  } catch (const IoError& error) {
    end.log_line = warning_line(error.text(), place_of(options_.local().begin));
  }
  return end;
}

void RankProcesses::on_signal(int signal) {
  if (signal == SIGTSTP) {  // Ctrl-Z reaches only the foreground group, the launcher's
    send(SIGSTOP);
    raise(SIGSTOP);
  } else if (signal == SIGCONT || signal == SIGUSR1) {
    send(signal);
  } else if (forwarded_signal_ != 0) {
    // A second signal kills the ranks. But a job scheduler (Slurm) may send one signal both to the
    // launcher and to its process group, so signals within kSameRequest count as one.
    if (Clock::now() - forwarded_at_ >= kSameRequest || signal == SIGINT) kill_all();
  } else {
    forwarded_signal_ = signal;
    forwarded_at_ = Clock::now();
    kill_at_ = forwarded_at_ + options_.kill_after;
    send(signal);
    send(SIGCONT);  // a stopped rank handles the signal only after it continues
  }
}

// A rank's process group exists: start() returns after exec, which follows setpgid.
void RankProcesses::send(int signal) const {
  for (const Rank& rank : ranks_) {
    if (!rank.ended) kill(-rank.pid, signal);
  }
}

bool RankProcesses::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
}

void RankProcesses::reap() {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    siginfo_t info{};
    // With WNOWAIT the rank stays a zombie, so the number of its process group is not reused.
    const int looked = waitid(P_PID, rank.pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (looked == 0 && info.si_pid == rank.pid) note_end(rank);
  }
}

void RankProcesses::note_end(Rank& ended) {
  // The rank's children are killed before the rank is reaped, because the kernel may reuse the
  // group number afterwards.
  kill(-ended.pid, SIGKILL);
  waitpid(ended.pid, &ended.wait_status, 0);
  ended.ended = true;
  // The state is stored last, so a peer that reads kEnded also reads the status and its reason.
  RankStatus& status = control_.status(ended.number);
  status.wait_status.store(ended.wait_status);
  const bool killed = WIFSIGNALED(ended.wait_status) && WTERMSIG(ended.wait_status) == SIGKILL;
  // The kernel counts the processes that it killed on the whole machine, so a higher count is a
  // strong hint but no proof.
  status.out_of_memory.store(killed && oom_kills() > oom_kills_before_ ? 1 : 0);
  // If the rank has destroyed its mesh without an error, its state is kFinished and must stay so: a
  // peer that still waits for the rank reads this state.
  const bool finished = status.state.load() == RankState::kFinished;
  if (!finished) status.state.store(RankState::kEnded, std::memory_order_seq_cst);
  if (ended_well(ended.wait_status)) {
    control_.wake_all();  // a rank can end early with code 0, so its peers must check
    return;
  }
  report_failure(control_, {.rank = ended.number,
                            .code = ExitCode::kPeerFailed,
                            .text = {.what = describe_end(ended.number, ended.wait_status),
                                     .hint = hint_for_end(ended.number, ended.wait_status,
                                                          status.out_of_memory.load() != 0)}});
  if (first_bad_ != nullptr) return;  // the grace period starts only once
  first_bad_ = &ended;
  kill_at_ = std::min(kill_at_.value_or(Clock::time_point::max()), Clock::now() + kGrace);
}

void RankProcesses::kill_all() {
  for (Rank& rank : ranks_) {
    if (rank.pid == 0 || rank.ended) continue;
    kill(-rank.pid, SIGKILL);
    kill(rank.pid, SIGKILL);                  // the rank may not have called setpgid yet
    waitpid(rank.pid, &rank.wait_status, 0);  // returns soon: no process can ignore SIGKILL
    rank.ended = true;
    rank.killed_here = true;
  }
}

ErrorPlace RankProcesses::place_of(int rank) const {
  return {.rank = rank, .world_size = options_.world_size(), .host = host_name()};
}

// Returns the rank of this host that failed first. It is not always the rank that ended first,
// because a survivor may end earlier than the rank that it reports. If a rank of another host
// failed the job, it is the rank of this host that ended first. Null if no rank failed.
const RankProcesses::Rank* RankProcesses::first_to_fail() const {
  const std::optional<Failure> failure = first_failure(control_.failure());
  if (!failure || !control_.is_local(failure->rank)) return first_bad_;
  return &ranks_[failure->rank - options_.local().begin];
}

JobEnd RankProcesses::judge() const {
  const bool all_well = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return !rank.killed_here && ended_well(rank.wait_status);
  });
  if (all_well) return {};
  // If the launcher has forwarded a signal, this signal is reported as the cause, whatever the exit
  // codes of the ranks are.
  if (forwarded_signal_ != 0) {
    const int code = 128 + forwarded_signal_;
    const CommError stopped(
        {.what = fmt::format("the job was stopped by signal {} (SIG{})", forwarded_signal_,
                             sigabbrev_np(forwarded_signal_))},
        static_cast<ExitCode>(code));
    return {.code = code,
            .line = error_line(stopped, place_of(options_.local().begin)),
            .was_stopped = true};
  }
  const std::optional<Failure> failure = first_failure(control_.failure());
  const bool names_one = failure && control_.is_local(failure->rank);
  const Rank& guilty = *first_to_fail();
  const int root = guilty.number;
  const bool own_code =
      !guilty.killed_here && WIFEXITED(guilty.wait_status) && WEXITSTATUS(guilty.wait_status) != 0;
  const int code =
      own_code ? WEXITSTATUS(guilty.wait_status) : static_cast<int>(ExitCode::kPeerFailed);
  const std::string rank_line = logs_.error_of(root, code, options_.local());
  // kPeerFailed is the exit code of a rank that ends because another one failed. It says nothing
  // about the cause.
  const bool is_shown = own_code && code != static_cast<int>(ExitCode::kPeerFailed) &&
                        (output_.has_said(code) || !rank_line.empty());
  const std::string hint = hint_for_end(root, guilty.wait_status,
                                        control_.status(root).out_of_memory.load() != 0, is_shown);
  ErrorText text{.what = describe_end(root, guilty.wait_status), .hint = hint};
  // If no rank printed the cause, the text of the first failure is used. If this text only guesses
  // why a rank was late, and that rank has ended by now, the way in which it ended replaces the
  // guess.
  if (failure && !is_shown) {
    text = failure->text;
    const bool how_is_known = names_one && !guilty.killed_here;
    if (how_is_known && text.cause == kLateCause) {
      text.cause = describe_end(root, guilty.wait_status);
    } else if (how_is_known) {
      text.what = describe_end(root, guilty.wait_status);
      text.hint = hint;
    }
  }
  return {.code = code,
          .rank_line = rank_line,
          .line = error_line(CommError(text, static_cast<ExitCode>(code)), place_of(root)),
          .rank = root,
          .wait_status = guilty.wait_status,
          .out_of_memory = control_.status(root).out_of_memory.load() != 0};
}

void RankProcesses::log_ends() const {
  std::vector<RankEnd> ends;
  const Rank* const first = first_to_fail();
  for (const Rank& each : ranks_) {
    ends.push_back({.rank = each.number,
                    .pid = each.pid,
                    .wait_status = each.wait_status,
                    .is_first = &each == first,
                    .by_launcher = each.killed_here});
  }
  logs_.write_ends(ends);
}

}  // namespace fsdp
