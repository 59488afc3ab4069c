// Runs a real program in a test and collects its output and its exit status.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp::testing {

using Environment = std::map<std::string, std::string>;

// The result of a process that has ended.
struct ProcessResult {
  int code = -1;   // exit code; 128 + signal if it was killed
  int signal = 0;  // 0: it exited
  std::string out;
  std::string err;
  double seconds = 0;
  int64_t peak_bytes = 0;  // most resident memory, mapped files included
};

// A process in its own process group, with pipes for its output. The destructor kills the whole
// group.
class Process {
 public:
  // `environment` is added to the environment of the test. An empty value unsets the variable.
  explicit Process(const std::vector<std::string>& command, const Environment& environment = {}) {
    std::array<int, 2> out{}, err{};
    if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe");
    }
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (const auto& [name, value] : environment) {
        value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
      }
      execvp(arguments.front(), arguments.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    ends_ = {out[0], err[0]};
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)),
        ends_(std::exchange(other.ends_, {-1, -1})),
        start_(other.start_) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ > 0) {
      ::kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }

  pid_t pid() const { return pid_; }

  // Shrinks the process's output pipe, so that the process blocks when one page of output is
  // unread.
  void make_pipe_small() const { fcntl(ends_[0], F_SETPIPE_SZ, 4096); }

  // Reads the output until it contains `text`. Returns false if that takes more than a minute.
  bool read_until(std::string_view text) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::string read_so_far;
    while (!read_so_far.ends_with(text)) {
      pollfd entry{ends_[0], POLLIN, 0};
      char c = 0;
      const bool got = std::chrono::steady_clock::now() < give_up && poll(&entry, 1, 100) >= 0;
      if (!got || (entry.revents != 0 && read(ends_[0], &c, 1) != 1)) return false;
      if (entry.revents != 0) read_so_far += c;
    }
    return true;
  }

  // Waits until the process ends. Kills it if it takes longer than `at_most`; its code is then 137.
  ProcessResult wait(std::chrono::seconds at_most = std::chrono::seconds(60)) {
    ProcessResult result;
    const auto give_up = start_ + at_most;
    std::array<pollfd, 2> entries{pollfd{ends_[0], POLLIN, 0}, pollfd{ends_[1], POLLIN, 0}};
    std::array<std::string*, 2> texts{&result.out, &result.err};
    while (entries[0].fd >= 0 || entries[1].fd >= 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          give_up - std::chrono::steady_clock::now());
      if (left.count() <= 0 || poll(entries.data(), 2, static_cast<int>(left.count())) == 0) {
        ::kill(-pid_, SIGKILL);
        break;
      }
      for (int i = 0; i < 2; ++i) {
        if (entries[i].fd < 0 || entries[i].revents == 0) continue;
        std::array<char, 4096> block{};
        const ssize_t got = read(entries[i].fd, block.data(), block.size());
        if (got <= 0) {
          entries[i].fd = -1;
        } else {
          texts[i]->append(block.data(), got);
        }
      }
    }
    int status = 0;
    rusage used{};
    wait4(pid_, &status, 0, &used);
    pid_ = 0;
    result.peak_bytes = used.ru_maxrss * 1024;
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result.code = result.signal != 0 ? 128 + result.signal : WEXITSTATUS(status);
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return result;
  }

 private:
  pid_t pid_ = 0;
  std::array<int, 2> ends_{-1, -1};
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Waits for all processes at the same time, and returns their results in the same order.
inline std::vector<ProcessResult> wait_for_all(
    std::vector<Process>& processes, std::chrono::seconds at_most = std::chrono::seconds(60)) {
  std::vector<ProcessResult> results(processes.size());
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < processes.size(); ++i) {
    waiters.emplace_back([&, i] { results[i] = processes[i].wait(at_most); });
  }
  for (std::thread& waiter : waiters) waiter.join();
  return results;
}

inline ProcessResult run_process(const std::vector<std::string>& command,
                                 const Environment& environment = {},
                                 std::chrono::seconds at_most = std::chrono::seconds(60)) {
  return Process(command, environment).wait(at_most);
}

// A temporary directory, removed by the destructor.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = "/tmp/fsdp-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { run_process({"rm", "-rf", path_}); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace fsdp::testing
