#include "checkpoint/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <mutex>

namespace fsdp {
namespace {

// Signal handlers have no argument of their own, so these values are global. Lock-free atomics may
// be used in a handler.
std::atomic<int64_t> first_stop_ms = -1;
std::atomic<bool> save_requested = false;
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void note_signal(int signal) {
  // A launcher may forward a signal that the terminal or Slurm has sent to the rank already. So a
  // second SIGTERM within a second is the same request.
  constexpr int64_t kSameRequestMs = 1000;
  constexpr int kEndedBySigterm = 128 + SIGTERM;
  if (signal == SIGUSR1) {
    save_requested = true;
    return;
  }
  int64_t before = -1;
  const int64_t now = now_ms();
  if (first_stop_ms.compare_exchange_strong(before, now)) return;
  if (now - before >= kSameRequestMs) ::_exit(kEndedBySigterm);
}

struct Handlers {
  std::mutex mutex;
  int users = 0;
  bool has_term = false;
  bool has_usr1 = false;
};

Handlers& handlers() {
  static Handlers all;
  return all;
}

// Installs note_signal as the handler of a signal, and returns true. If the program has set its own
// handler or ignores the signal, changes nothing and returns false.
bool install(int signal) {
  struct sigaction before {};
  if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return false;
  struct sigaction action {};
  action.sa_handler = note_signal;
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
  all.has_term = install(SIGTERM);
  all.has_usr1 = install(SIGUSR1);
}

StopSignals::~StopSignals() {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (--all.users > 0) return;
  if (all.has_term) std::signal(SIGTERM, SIG_DFL);
  if (all.has_usr1) std::signal(SIGUSR1, SIG_DFL);
}

StopSignals::Request StopSignals::request() const {
  if (first_stop_ms >= 0) return Request::kStop;
  return save_requested ? Request::kSave : Request::kNone;
}

void StopSignals::forget_save() { save_requested = false; }

}  // namespace fsdp
