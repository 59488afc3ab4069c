// fsdp-run -n N [--log-dir D] PROGRAM ARGS…: starts N ranks of a program on this host.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <exception>

#include "base/standard_streams.h"
#include "fsdp/error.h"
#include "fsdp_run_ranks.h"

namespace {

fsdp::ErrorPlace this_place() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return {.rank = 0, .world_size = 1, .host = host.data(), .step = -1};
}

void say(const std::string& line) {
  if (!line.empty()) fsdp::write_error_line(line);
}

int run(const fsdp::LaunchOptions& options) {
  std::signal(SIGXFSZ, SIG_IGN);  // the job's memory counts as files; the error says so
  std::signal(SIGTTOU, SIG_IGN);  // as the ranks do
  const sigset_t signals = fsdp::RankProcesses::signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const fsdp::JobEnd end = fsdp::RankProcesses(options).wait();
  say(end.line);
  say(end.rank_line);
  say(end.log_line);
  return end.code;
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::open_standard_streams();
  CLI::App app{
      "Starts N ranks of a program on this host and ends when they have ended:\n"
      "fsdp-run -n N [--log-dir D] PROGRAM [ARGUMENTS]",
      "fsdp-run"};
  fsdp::LaunchOptions options;
  app.add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks, "number of ranks")
      ->required()
      ->check(CLI::Range(1, 1024));
  app.add_option("--log-dir,--log_dir", options.log_dir,
                 "write each rank's output to D/rank-R.out and D/rank-R.err, and how each ended to "
                 "D/ends.jsonl");
  app.add_flag("--all-errors,--all_errors", options.all_errors,
               "show the errors of all ranks, also where they say the same");
  app.prefix_command();
  app.footer(
      "Exit code: 0 when all ranks ended with 0; 75 when the first rank to fail was killed by a\n"
      "signal or left early; else that rank's code. One line on stderr names the cause.");
  try {
    app.parse(argc, argv);
    options.command = app.remaining();
    if (!options.command.empty() && options.command.front() == "--") {
      options.command.erase(options.command.begin());
    }
    if (options.command.empty()) throw CLI::RequiredError("PROGRAM");
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::Error& error) {
    const fsdp::InvalidArgument wrong({.what = error.what(),
                                       .where = "command line",
                                       .cause = {},
                                       .hint = "fsdp-run -n N [--log-dir D] PROGRAM [ARGUMENTS]"},
                                      fsdp::ExitCode::kUsage);
    say(error_line(wrong, this_place()));
    return wrong.exit_code();
  }
  try {
    return run(options);
  } catch (const std::exception& error) {
    say(fsdp::error_line(error, this_place()));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
