// fsdp-run -n N [--log-dir D] PROGRAM ARGS… starts N ranks of a program on this host. With --nnodes
// H, one fsdp-run on each of H hosts starts the ranks of its host.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/program_text.h"
#include "fsdp_run_ranks.h"
#include "host_flags.h"
#include "programs/command_line.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"
#include "restarts.h"
#include "run/unknown_flags.h"
#include "run_job.h"

namespace {

std::string help() {
  return fmt::format("usage: {}\n\n", fsdp::kRunUsage) +
         "Starts N ranks of a program on this host and ends when they have ended.\n\n" +
         fsdp::help_row("-n, --nproc-per-node N", "number of ranks on this host, 1 to 1024") +
         fsdp::help_row("--nnodes H, MIN:MAX",
                        "the job has N ranks on each of H hosts: run one fsdp-run on each host, "
                        "with all of the next four flags [1]; MIN:MAX: with --max-restarts, each "
                        "start of the job has the hosts that come in time, at least MIN") +
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
                        "then resume (--resume auto); several hosts need it on each of them") +
         fsdp::help_row("--min-ranks M",
                        "if a rank fails three times before the first step, continue with one "
                        "rank fewer, but at least M ranks [N of -n]") +
         fsdp::help_row("--restart-after SECONDS",
                        "pause before each restart [1, 2, 4, ... at most 30], and with --nnodes "
                        "MIN:MAX the time for hosts to come [30]") +
         fsdp::help_row("--all-errors",
                        "show all ranks' stderr, equal errors included; else these are shown once, "
                        "with a count") +
         "\nExit codes: 0 when all ranks ended with 0; 75 when the first rank to fail was\n"
         "killed by a signal or left early; else that rank's code; 128 + N after signal N;\n"
         "64 command line, 73 a log folder that cannot be written. One line on stderr\n"
         "names the cause.\n";
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
    fsdp::refuse_unknown(unknown,
                         {.names = names, .usage = fmt::format("use {}", fsdp::kRunUsage)});
}

struct Options {
  fsdp::LaunchOptions launch;
  fsdp::RestartOptions restarts;
};

// Returns the options, or nothing for --help.
std::optional<Options> parse(int argc, const char* const* argv) {
  Options all;
  fsdp::LaunchOptions& options = all.launch;
  CLI::App app;
  app.add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks)
      ->required()
      ->check(CLI::Range(1, 1024));
  app.add_option("--log-dir,--log_dir", options.log_dir);
  fsdp::HostFlags hosts;
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
    fsdp::refuse_usage(error.what(), fmt::format("use {}", fsdp::kRunUsage));
  }
  options.hosts = hosts.hosts(options, all.restarts);
  all.restarts.several_hosts = options.hosts.most > 1;
  if (options.max_restarts == 0 && (all.restarts.min_ranks > 0 || pause)) {
    fsdp::refuse_usage("--min-ranks and --restart-after need restarts", "add --max-restarts N");
  }
  if (all.restarts.min_ranks > options.ranks) {
    fsdp::refuse_usage(
        fmt::format("--min-ranks {} is more than -n {}", all.restarts.min_ranks, options.ranks),
        "use --min-ranks of at most -n");
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_alone([&] {
    const std::vector<std::string> words(argv + 1, argv + argc);
    check_flags(words);
    const std::optional<Options> options = parse(argc, argv);
    if (options) return fsdp::run_job(options->launch, options->restarts);
    fsdp::print_all("help", help());
    return 0;
  });
}
