// fsdp-run -n N [--log-dir D] PROGRAM ARGS… starts N ranks of a program on this host. With --nnodes
// H, one fsdp-run on each of H hosts starts the ranks of its host.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/standard_streams.h"
#include "comm/job/job_progress.h"
#include "comm/store/store_token.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "fsdp_run_ranks.h"
#include "memory_folder.h"
#include "restarts.h"
#include "run/unknown_flags.h"

namespace {

fsdp::ErrorPlace this_place() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return {.rank = 0, .world_size = 1, .host = host.data(), .step = -1};
}

void say(const std::string& line) {
  if (!line.empty()) fsdp::write_error_line(line);
}

constexpr int kMostRanks = 1 << 16;
constexpr const char* kUsage = "fsdp-run -n N [FLAGS] [--] PROGRAM [ARGUMENTS]";

std::string help() {
  return fmt::format("usage: {}\n\n", kUsage) +
         "Starts N ranks of a program on this host and ends when they have ended.\n\n" +
         fsdp::help_row("-n, --nproc-per-node N", "number of ranks on this host, 1 to 1024") +
         fsdp::help_row("--nnodes H",
                        "the job has N ranks on each of H hosts: run one fsdp-run on each host, "
                        "with all of the next four flags [1]") +
         fsdp::help_row("--node-rank R", "number of this host, 0 to H - 1") +
         fsdp::help_row("--master-addr A, --master-port P",
                        "address of host 0 that the other hosts can reach, and a free port there") +
         fsdp::help_row("--token-file F",
                        "file with the job's secret, equal on all hosts, at least 32 bytes, which "
                        "only its owner can read: head -c 32 /dev/urandom > F; chmod 600 F") +
         fsdp::help_row("--no-token",
                        "instead of --token-file, on a private network only: any process that "
                        "reaches the port can join the job") +
         fsdp::help_row("--log-dir D",
                        "write each rank's output to D/rank-R.out and D/rank-R.err, and how each "
                        "ended to D/ends.jsonl; rank 0's output is shown, too") +
         fsdp::help_row(
             "--kill-after SECONDS",
             "time that ranks have to end after SIGINT, SIGTERM or SIGHUP, for example to "
             "save a checkpoint; then they are killed [60]") +
         fsdp::help_row("--max-restarts N",
                        "start the job again after a failure that a restart can mend, at most N "
                        "times in a row without a new checkpoint [0]; programs with checkpoints "
                        "then resume (--resume auto); not with several hosts") +
         fsdp::help_row("--min-ranks M",
                        "if a rank fails three times before the first step, continue with one "
                        "rank fewer, but at least M ranks [N of -n]") +
         fsdp::help_row("--restart-after SECONDS",
                        "pause before each restart [1, 2, 4, ... at most 30]") +
         fsdp::help_row("--all-errors",
                        "show all ranks' stderr, equal errors included; else these are shown once, "
                        "with a count") +
         "\nExit codes: 0 when all ranks ended with 0; 75 when the first rank to fail was\n"
         "killed by a signal or left early; else that rank's code; 128 + N after signal N;\n"
         "64 command line, 73 a log folder that cannot be written. One line on stderr\n"
         "names the cause.\n";
}

[[noreturn]] void refuse(std::string what, std::string hint) {
  throw fsdp::InvalidArgument(
      {.what = std::move(what), .where = "command line", .hint = std::move(hint)},
      fsdp::ExitCode::kUsage);
}

bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
}

// Refuses unknown flags that precede the name of the program on the command line. CLI11's parser
// stops at the first word that it does not know, so it would take an unknown flag for the program.
void check_flags(const std::vector<std::string>& words) {
  const std::vector<std::string> switches{"--all-errors", "--no-token", "--help"};
  std::vector<std::string> names{"--nproc-per-node", "--nnodes",       "--node-rank",
                                 "--master-addr",    "--master-port",  "--token-file",
                                 "--log-dir",        "--kill-after",   "--max-restarts",
                                 "--min-ranks",      "--restart-after"};
  names.insert(names.end(), switches.begin(), switches.end());
  std::vector<std::string> unknown;
  for (size_t i = 0; i < words.size() && words[i].starts_with('-') && words[i] != "--"; ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = fsdp::with_hyphens(words[i].substr(0, equals));
    const bool takes_value = name == "-n" || (std::ranges::find(names, name) != names.end() &&
                                              std::ranges::find(switches, name) == switches.end());
    const bool has_value = equals == std::string::npos && takes_value;
    if (has_value) ++i;  // the value is the next word
    const bool known = std::ranges::find(names, name) != names.end() || name == "-h" ||
                       name == "-n" || (name.starts_with("-n") && is_number(name.substr(2)));
    if (known) continue;
    unknown.push_back(words[i]);
    // A number after an unknown flag is the flag's value. Any other word may be the program.
    if (i + 1 < words.size() && is_number(words[i + 1])) ++i;
  }
  if (!unknown.empty())
    fsdp::refuse_unknown(unknown, {.names = names, .usage = fmt::format("use {}", kUsage)});
}

struct Options {
  fsdp::LaunchOptions launch;
  fsdp::RestartOptions restarts;
};

// The flags for several hosts, as far as they are set.
struct HostFlags {
  std::optional<int> count, index, port;
  std::string address, token_file;
  bool no_token = false;

  void add_to(CLI::App& app) {
    app.add_option("--nnodes", count)->check(CLI::Range(1, kMostRanks));
    app.add_option("--node-rank,--node_rank", index)->check(CLI::Range(0, kMostRanks));
    app.add_option("--master-addr,--master_addr", address);
    app.add_option("--master-port,--master_port", port)->check(CLI::Range(1, 65535));
    app.add_option("--token-file,--token_file", token_file);
    app.add_flag("--no-token,--no_token", no_token);
  }
};

// Checks which flags are set together. On one host, --nnodes 1 alone is enough.
void check_hosts(const HostFlags& flags, const fsdp::LaunchOptions& options) {
  std::vector<std::string> set, missing;
  const auto look = [&](const char* name, bool is_set) {
    (is_set ? set : missing).emplace_back(name);
  };
  look("--node-rank", flags.index.has_value());
  look("--master-addr", !flags.address.empty());
  look("--master-port", flags.port.has_value());
  look("--token-file or --no-token", flags.no_token || !flags.token_file.empty());
  if (!flags.count && !set.empty()) {
    refuse(fmt::format("{} needs --nnodes", set.front()), "add --nnodes H, the number of hosts");
  }
  const int count = flags.count.value_or(1);
  if (!missing.empty() && (count > 1 || !set.empty())) {
    refuse(fmt::format("--nnodes {} needs {}", count, fmt::join(missing, ", ")),
           "see fsdp-run --help");
  }
  if (flags.no_token && !flags.token_file.empty()) {
    refuse("--token-file and --no-token are both set", "use one of them");
  }
  if (flags.index.value_or(0) >= count) {
    refuse(fmt::format("--node-rank {}, expected less than --nnodes {}", *flags.index, count),
           "number the hosts from 0");
  }
  if (int64_t{count} * options.ranks > kMostRanks) {
    refuse(fmt::format("--nnodes {} with -n {} makes more than {} ranks", count, options.ranks,
                       kMostRanks),
           "use fewer ranks");
  }
  if (count > 1 && options.max_restarts > 0) {
    refuse(fmt::format("--max-restarts cannot be used with --nnodes {}", count),
           "let the scheduler start the whole job again after exit code 75");
  }
}

// Returns the hosts that the flags describe. Errors: InvalidArgument (78) if the token file cannot
// be used.
fsdp::HostOptions hosts_of(const HostFlags& flags) {
  if (flags.address.empty()) return {};
  const std::string token_file =
      flags.no_token ? "" : std::filesystem::absolute(flags.token_file).string();
  // The ranks read the token later. This call reports a wrong file before any rank starts.
  fsdp::read_token({.job_token_file = token_file, .no_token = flags.no_token});
  return {.count = *flags.count,
          .index = *flags.index,
          .address = flags.address,
          .port = *flags.port,
          .token_file = token_file};
}

// Returns the options, or nothing for --help.
std::optional<Options> parse(int argc, const char* const* argv) {
  Options all;
  fsdp::LaunchOptions& options = all.launch;
  CLI::App app;
  app.add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks)
      ->required()
      ->check(CLI::Range(1, 1024));
  app.add_option("--log-dir,--log_dir", options.log_dir);
  HostFlags hosts;
  hosts.add_to(app);
  int64_t kill_after = options.kill_after.count();
  app.add_option("--kill-after,--kill_after", kill_after)->check(CLI::Range(1, 1'000'000));
  app.add_option("--max-restarts,--max_restarts", options.max_restarts)
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--min-ranks,--min_ranks", all.restarts.min_ranks)->check(CLI::Range(1, 1024));
  std::optional<int64_t> pause;
  app.add_option("--restart-after,--restart_after", pause)->check(CLI::Range(0, 1'000'000));
  app.add_flag("--all-errors,--all_errors", options.all_errors);
  app.prefix_command();
  try {
    app.parse(argc, argv);
    options.kill_after = std::chrono::seconds(kill_after);
    options.command = app.remaining();  // begins with the program and includes its own flags
    if (!options.command.empty() && options.command.front() == "--") {
      options.command.erase(options.command.begin());
    }
    if (options.command.empty()) throw CLI::RequiredError("PROGRAM");
    all.restarts.max_restarts = options.max_restarts;
    if (pause) all.restarts.pause = std::chrono::seconds(*pause);
  } catch (const CLI::CallForHelp&) {
    return std::nullopt;
  } catch (const CLI::Error& error) {
    refuse(error.what(), fmt::format("use {}", kUsage));
  }
  check_hosts(hosts, options);
  options.hosts = hosts_of(hosts);
  if (options.max_restarts == 0 && (all.restarts.min_ranks > 0 || pause)) {
    refuse("--min-ranks and --restart-after need restarts", "add --max-restarts N");
  }
  if (all.restarts.min_ranks > options.ranks) {
    refuse(fmt::format("--min-ranks {} is more than -n {}", all.restarts.min_ranks, options.ranks),
           "use --min-ranks of at most -n");
  }
  return all;
}

// Pauses before a restart. If a signal arrives that ends the job, returns this signal at once.
// Otherwise returns 0 after `time`.
int pause_for(std::chrono::seconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  const sigset_t signals = fsdp::RankProcesses::signals();
  for (;;) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return 0;
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec rest{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &rest);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return signal;
  }
}

// Starts the job, and starts it again as Restarts decides. Returns the exit code.
int run_with_restarts(fsdp::LaunchOptions options, const fsdp::RestartOptions& restart_options) {
  fsdp::Restarts restarts(restart_options, options.ranks);
  std::optional<fsdp::MemoryFolder> memory;
  if (options.max_restarts > 0) options.memory_folder = memory.emplace().path();
  for (;; ++options.attempt) {
    const fsdp::JobProgress progress = fsdp::JobProgress::create();
    options.progress_file = progress.descriptor();
    const fsdp::JobEnd end = fsdp::RankProcesses(options).wait();
    // The error line of the rank that failed is printed first, then the launcher's line about how
    // that rank ended.
    say(end.rank_line);
    say(end.line);
    say(end.log_line);
    if (end.code == 0 || end.was_stopped) return end.code;
    const auto next = restarts.after({.code = end.code,
                                      .rank = end.rank,
                                      .wait_status = end.wait_status,
                                      .out_of_memory = end.out_of_memory,
                                      .step = progress.step(),
                                      .saved = progress.saved()});
    if (!restarts.reason().empty()) say("fsdp: note: " + restarts.reason());
    if (!next) return end.code;
    options.ranks = next->ranks;
    if (const int signal = pause_for(next->pause)) return 128 + signal;
  }
}

int run(const Options& options) {
  // The job's shared memory consists of files. With SIGXFSZ ignored, a limit on file sizes causes
  // an error with a text instead of a signal that ends the launcher.
  std::signal(SIGXFSZ, SIG_IGN);
  // Ranks inherit the ignored SIGTTOU through exec. They run in their own process groups, which are
  // background groups of the terminal. With `stty tostop` the terminal would otherwise stop a
  // background process that writes.
  std::signal(SIGTTOU, SIG_IGN);
  // RankProcesses receives these signals by sigtimedwait. They are blocked before the first fork,
  // so that none is lost and none ends the launcher. The thread of RankOutput inherits the mask.
  const sigset_t signals = fsdp::RankProcesses::signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return run_with_restarts(options.launch, options.restarts);
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::open_standard_streams();  // before any other descriptor exists
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    check_flags(words);
    const std::optional<Options> options = parse(argc, argv);
    if (options) return run(*options);
    fmt::print("{}", help());
    return 0;
  } catch (const std::exception& error) {
    say(fsdp::error_line(error, this_place()));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
