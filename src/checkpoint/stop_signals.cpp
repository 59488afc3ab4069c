#include "checkpoint/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <mutex>
#include <string_view>

#include "base/environment.h"

namespace fsdp {
namespace {

// Signal handlers have no argument of their own, so these values are global. Lock-free atomics may
// be used in a handler.
std::atomic<int64_t> first_stop_ms = -1;
std::atomic<bool> save_requested = false;
std::atomic<bool> has_launcher = false;
std::atomic<int64_t> lost_steps = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void note_signal(int signal) {
  // A launcher may forward a signal that the terminal or Slurm has sent to the rank already. So a
  // second signal within a second is the same request.
  constexpr int64_t kSameRequestMs = 1000;
  if (signal == SIGUSR1) {
    save_requested = true;
    return;
  }
  int64_t before = -1;
  const int64_t now = now_ms();
  if (first_stop_ms.compare_exchange_strong(before, now)) return;
  const bool may_be_copy = signal == SIGTERM || has_launcher;
  if (!may_be_copy || now - before >= kSameRequestMs) ::_exit(128 + signal);
}

// Prints the lost steps with the functions that a signal handler may call, then lets the signal end
// the process.
void tell_lost_steps(int signal) {
  constexpr std::string_view kBegin = "fsdp: note: Ctrl-C: the run has no checkpoints, so its ";
  constexpr std::string_view kEnd =
      " steps are lost; with --save-dir DIR, Ctrl-C saves them, and --resume auto continues\n";
  char text[kBegin.size() + 20 + kEnd.size()];
  size_t size = kBegin.copy(text, kBegin.size());
  char digits[20];
  size_t count = 0;
  for (int64_t left = lost_steps; left > 0; left /= 10) digits[count++] = '0' + left % 10;
  while (count > 0) text[size++] = digits[--count];
  size += kEnd.copy(text + size, kEnd.size());
  if (lost_steps > 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, size);
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

struct Handlers {
  std::mutex mutex;
  int users = 0;
  bool has_int = false;
  bool has_term = false;
  bool has_usr1 = false;
};

Handlers& handlers() {
  static Handlers all;
  return all;
}

// Installs a handler of a signal, and returns true. If the program has set its own handler or
// ignores the signal, changes nothing and returns false.
bool install(int signal, void (*handler)(int)) {
  struct sigaction before {};
  if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return false;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(signal, &action, nullptr) == 0;
}

}  // namespace

StopSignals::StopSignals() {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (all.users++ > 0) return;
  first_stop_ms = -1;
  save_requested = false;
  has_launcher = read_launch_environment().launcher != Launcher::kNone;
  all.has_int = install(SIGINT, note_signal);
  all.has_term = install(SIGTERM, note_signal);
  all.has_usr1 = install(SIGUSR1, note_signal);
}

StopSignals::~StopSignals() {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (--all.users > 0) return;
  if (all.has_int) std::signal(SIGINT, SIG_DFL);
  if (all.has_term) std::signal(SIGTERM, SIG_DFL);
  if (all.has_usr1) std::signal(SIGUSR1, SIG_DFL);
}

StopSignals::Request StopSignals::request() const {
  if (first_stop_ms >= 0) return Request::kStop;
  return save_requested ? Request::kSave : Request::kNone;
}

void StopSignals::forget_save() { save_requested = false; }

LostSteps::LostSteps() : is_installed_(install(SIGINT, tell_lost_steps)) {
  if (is_installed_) lost_steps = 0;
}

LostSteps::~LostSteps() {
  if (is_installed_) std::signal(SIGINT, SIG_DFL);
}

void LostSteps::set(int64_t steps) { lost_steps = steps; }

}  // namespace fsdp
