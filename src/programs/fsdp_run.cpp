// fsdp-run -n N [--log-dir D] PROGRAM ARGS… starts N ranks of a program on this host.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/standard_streams.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "fsdp_run_ranks.h"
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

constexpr const char* kUsage = "fsdp-run -n N [FLAGS] [--] PROGRAM [ARGUMENTS]";

std::string help() {
  return fmt::format("usage: {}\n\n", kUsage) +
         "Starts N ranks of a program on this host and ends when they have ended.\n\n" +
         fsdp::help_row("-n, --nproc-per-node N", "number of ranks, 1 to 1024") +
         fsdp::help_row("--log-dir D",
                        "write each rank's output to D/rank-R.out and D/rank-R.err, and how each "
                        "ended to D/ends.jsonl; rank 0's output is shown, too") +
         fsdp::help_row(
             "--kill-after SECONDS",
             "time that ranks have to end after SIGINT, SIGTERM or SIGHUP, for example to "
             "save a checkpoint; then they are killed [60]") +
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

// Refuses unknown flags before the program. CLI11's parser stops at the first word that it does not
// know, so it would take an unknown flag for the program.
void check_flags(const std::vector<std::string>& words) {
  const std::vector<std::string> names{"--nproc-per-node", "--log-dir", "--kill-after",
                                       "--all-errors", "--help"};
  std::vector<std::string> unknown;
  for (size_t i = 0; i < words.size() && words[i].starts_with('-') && words[i] != "--"; ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = fsdp::with_hyphens(words[i].substr(0, equals));
    const bool has_value = equals == std::string::npos && (name == "-n" || name == names[0] ||
                                                           name == names[1] || name == names[2]);
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

// Returns the options, or nothing for --help.
std::optional<fsdp::LaunchOptions> parse(int argc, const char* const* argv) {
  fsdp::LaunchOptions options;
  CLI::App app;
  app.add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks)
      ->required()
      ->check(CLI::Range(1, 1024));
  app.add_option("--log-dir,--log_dir", options.log_dir);
  int64_t kill_after = options.kill_after.count();
  app.add_option("--kill-after,--kill_after", kill_after)->check(CLI::Range(1, 1'000'000));
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
  } catch (const CLI::CallForHelp&) {
    return std::nullopt;
  } catch (const CLI::Error& error) {
    refuse(error.what(), fmt::format("use {}", kUsage));
  }
  return options;
}

int run(const fsdp::LaunchOptions& options) {
  // The job's shared memory counts as files. With SIGXFSZ ignored, a limit on file sizes causes an
  // error with a text instead of a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  // Ranks inherit the ignored SIGTTOU through exec. They run in their own process groups, which are
  // background groups of the terminal. With `stty tostop` the terminal would otherwise stop a
  // background process that writes.
  std::signal(SIGTTOU, SIG_IGN);
  // RankProcesses receives these signals by sigtimedwait. They are blocked before the first fork,
  // so that none is lost and none ends the launcher. The thread of RankOutput inherits the mask.
  const sigset_t signals = fsdp::RankProcesses::signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const fsdp::JobEnd end = fsdp::RankProcesses(options).wait();
  // The error of the rank is printed first, then the launcher's line that explains it.
  say(end.rank_line);
  say(end.line);
  say(end.log_line);
  return end.code;
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::open_standard_streams();  // before any other descriptor exists
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    check_flags(words);
    const std::optional<fsdp::LaunchOptions> options = parse(argc, argv);
    if (options) return run(*options);
    fmt::print("{}", help());
    return 0;
  } catch (const std::exception& error) {
    say(fsdp::error_line(error, this_place()));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
