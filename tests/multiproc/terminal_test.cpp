// Tests a job under a shell and a terminal: closed or full streams, Ctrl-Z, and stty tostop.
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "launch.h"
#include "support/pseudo_terminal.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

using Words = std::vector<std::string>;

// Runs `command` in a shell that redirects its streams.
ProcessResult redirected(const std::string& redirections, const Words& command) {
  Words words{"sh", "-c", "exec \"$@\" " + redirections, "sh"};
  words.insert(words.end(), command.begin(), command.end());
  return run_process(words);
}

// Runs `command` as the foreground job of a shell on `terminal`. Returns its exit code.
int code_on(const PseudoTerminal& terminal, const Words& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setsid();
    ioctl(terminal.slave(), TIOCSCTTY, 0);
    for (const int stream : {0, 1, 2}) dup2(terminal.slave(), stream);
    execv(arguments.front(), arguments.data());
    _exit(127);
  }
  int status = -1;
  const bool ended = eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; });
  if (!ended) {
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
  }
  CHECK(ended);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns the states of the processes that have `token` as an argument. The state of a stopped
// process is 'T'.
std::string states_of(const std::string& token) {
  std::string states;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    std::ifstream command(entry.path() / "cmdline");
    bool found = false;
    for (std::string word; std::getline(command, word, '\0');) found = found || word == token;
    std::string line;
    std::getline(std::ifstream(entry.path() / "stat"), line);
    const size_t name = line.rfind(')');
    if (found && name != std::string::npos) states += line.at(name + 2);
  }
  return states;
}

TEST_CASE("an exit code does not depend on who takes stderr") {
  for (const char* closed : {"2>&-", "2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"}) {
    CAPTURE(closed);
    CHECK(redirected(closed, {RANK_PROGRAM, "no such mode"}).code == 64);
    CHECK(redirected(closed, {FSDP_RUN, "-n", "2", RANK_PROGRAM, "no such mode"}).code == 64);
    CHECK(redirected(closed, {FSDP_RUN, "--no-such-flag"}).code == 64);
    // A thread forwards the error here. If it threw, nothing could catch its exception.
    CHECK(redirected(closed, {FSDP_RUN, "-n", "2", RANK_PROGRAM, "steps", "9", "throw", "1", "3"})
              .code == 65);
  }
}

TEST_CASE("help that cannot be written ends with 74, on a full disk and at a file size limit") {
  const std::string help = std::string(FSDP_RUN) + " --help";
  CHECK(run_process({"sh", "-c", help + " > /dev/full"}).code == 74);
  const ScratchFolder folder;
  const std::string file = (folder.path() / "help").string();
  if (kThreadSanitized) return;  // the thread sanitizer writes a file at start
  CHECK(run_process({"sh", "-c", "ulimit -f 0 && exec " + help + " > " + file}).code == 74);
}

TEST_CASE("ranks meet whatever streams are closed, and nothing is written into their memory") {
  for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", "<&- >&- 2>&-"}) {
    CAPTURE(closed);
    const ProcessResult result =
        redirected(closed, {FSDP_RUN, "-n", "2", RANK_PROGRAM, "sweep", "5000"});
    CAPTURE(result.err);
    CHECK(result.code == 0);
  }
}

TEST_CASE("one SIGTERM ends a job whose ranks are stopped") {
  Process process({FSDP_RUN, "-n", "2", RANK_PROGRAM, "linger", "fsdp-test-stopped"});
  REQUIRE(process.read_until("rank 1 lingers\n"));  // before, the launcher still starts ranks
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", process.pid()));
  for (pid_t rank = 0; children >> rank;) kill(rank, SIGSTOP);
  REQUIRE(eventually([] { return lines_with(states_of("fsdp-test-stopped"), "T") == 2; }));
  kill(process.pid(), SIGTERM);
  const ProcessResult result = process.wait(std::chrono::seconds(20));
  CHECK(result.code == 128 + SIGTERM);
  CHECK(states_of("fsdp-test-stopped").empty());
}

TEST_CASE("Ctrl-Z stops the ranks, too, and a job goes on after longer than its time-out") {
  const TemporaryDirectory directory;
  const std::string begun = directory.path() + "/begun";
  Process process(
      {FSDP_RUN, "-n", "2", RANK_PROGRAM, "steps", "20000", "none", "0", "0", "fsdp-test-ctrl-z"},
      {{"TEST_TIMEOUT_MS", "1000"}, {"TEST_BEGUN", begun}});
  REQUIRE(eventually([&] { return std::filesystem::exists(begun); }));
  kill(process.pid(), SIGTSTP);
  REQUIRE(eventually([] { return states_of("fsdp-test-ctrl-z") == "TTT"; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(1400));
  CHECK(states_of("fsdp-test-ctrl-z") == "TTT");
  kill(process.pid(), SIGCONT);
  const ProcessResult result = process.wait();
  CAPTURE(result.err);
  CHECK(result.code == 0);
  CHECK(lines_with(result.out, "of 2 done\n") == 2);
  CHECK(result.err == "");
}

TEST_CASE("ranks write to a terminal that stops what is in the background") {
  const PseudoTerminal terminal;
  termios settings{};
  REQUIRE(tcgetattr(terminal.slave(), &settings) == 0);
  settings.c_lflag |= TOSTOP;
  REQUIRE(tcsetattr(terminal.slave(), TCSANOW, &settings) == 0);
  CHECK(code_on(terminal, {FSDP_RUN, "-n", "2", RANK_PROGRAM, "steps", "3"}) == 0);
  const std::string text = terminal.read_all();
  CHECK(lines_with(text, "of 2 done\r\n") == 2);
}

// Rank 0 leaves a status line without a newline. Then a rank fails, or the job is stopped.
TEST_CASE("errors and warnings begin in a row of their own below a status line") {
  const std::string status = R"(printf '\rstep 3/9  loss 1.0\033[K'; )";
  const std::string says = "fsdp: warning rank 0/1 host h: slow";
  struct Job {
    std::string script;
    int code;
  };
  const std::string fails = "echo 'fsdp: error[65] rank 0/1 host h: bad' >&2; exit 65";
  for (const Job& job : {Job{fails, 65}, Job{"echo '" + says + "' >&2; " + status + fails, 65},
                         Job{"kill -9 $$", 75}, Job{"kill -INT $PPID; exec sleep 60", 130}}) {
    for (const Words& flags : {Words{"-n", "1"}, Words{"-n", "1", "--all-errors"}}) {
      CAPTURE(job.script);
      const PseudoTerminal terminal(120);
      Words command{FSDP_RUN};
      command.insert(command.end(), flags.begin(), flags.end());
      command.insert(command.end(), {"sh", "-c", status + job.script});
      CHECK(code_on(terminal, command) == job.code);
      const std::vector<std::string> rows = rows_of(terminal.read_all(), 120);
      CHECK(rows.front() == "step 3/9  loss 1.0");
      const std::string text = fmt::format("{}\n", fmt::join(rows, "\n"));
      CAPTURE(text);
      CHECK(lines_with(text, "fsdp: ") == lines_with(text, "\nfsdp: "));
      CHECK(lines_with(text, fmt::format("\nfsdp: error[{}] rank 0/1", job.code)) > 0);
      CHECK(text.find("\n\n\n") == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
