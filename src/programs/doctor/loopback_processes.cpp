#include "programs/doctor/loopback_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/descriptor.h"
#include "comm/make_mesh.h"
#include "programs/doctor/loopback.h"

namespace fsdp::doctor {
namespace {

constexpr auto kWaitOfRanks = std::chrono::seconds(20);  // shorter than TimeLimits::loopback

// Replaces the child process by the command. The code between fork and exec must not allocate,
// because a lock that another thread held at the fork stays locked in the child.
[[noreturn]] void become(char* const* words, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(words[0], words);
  _exit(127);
}

std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t count = read(file, part.data(), part.size());
    if (count > 0) text.append(part.data(), static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) return text;  // end of output, or error
  }
}

}  // namespace

ErrorText failure_of(const std::string& printed, int status) {
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    // An error line looks like this: "fsdp: error[70] rank 1/2 host a: TEXT; hint: HINT".
    if (!line.starts_with("fsdp: error[") && !line.starts_with("fsdp: rank ")) continue;
    const size_t begin = line.find(": ", line.find("rank "));
    if (begin == std::string::npos) continue;
    const std::string text = line.substr(begin + 2);
    const size_t hint = text.find("; hint: ");
    if (hint == std::string::npos) return {.what = text};
    return {.what = text.substr(0, hint), .hint = text.substr(hint + std::strlen("; hint: "))};
  }
  return {.what = WIFSIGNALED(status)
                      ? fmt::format("signal {} ended the ranks", WTERMSIG(status))
                      : fmt::format("the ranks ended with code {}", WEXITSTATUS(status))};
}

std::string output_of(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw DeviceError({.what = "a pipe for the loopback's ranks cannot be created",
                       .cause = std::strerror(errno),
                       .hint = "raise the limit of open files (ulimit -n)"});
  }
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    throw DeviceError({.what = "the loopback's ranks cannot be started",
                       .cause = std::strerror(errno),
                       .hint = "raise the limit of processes (ulimit -u)"});
  }
  if (pid == 0) become(words.data(), write_end.get());
  // The parent's write end is closed, so that the reader sees the end of the output. The output is
  // read before waitpid, because a command blocks if the pipe is full.
  write_end = Descriptor();
  std::string printed = read_all(read_end.get());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return printed;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    throw DeviceError({.what = fmt::format("'{}' cannot be started", command.front()),
                       .hint = "install fsdp-run in the folder of fsdp-doctor"});
  }
  throw DeviceError(failure_of(printed, status));
}

void run_loopback_processes(int ranks) {
  // The path of this program is read from /proc/self/exe, because argv[0] can be a name without a
  // folder, which the shell found in PATH.
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe");
  output_of({(own.parent_path() / "fsdp-run").string(), "-n", std::to_string(ranks), "--",
             own.string(), kRankFlag});
}

// first_use is the factor by which the timeout of the first collectives is longer. With 1 they get
// no more time than later ones, so a rank that hangs is reported before run_within reaches its
// limit.
void run_loopback_rank() {
  std::vector<Mesh> own;
  own.push_back(make_mesh({.device = DeviceKind::kCuda, .timeout = kWaitOfRanks, .first_use = 1}));
  run_loopback(std::move(own));
}

}  // namespace fsdp::doctor
