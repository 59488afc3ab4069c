#include "launcher_signals.h"

namespace fsdp {

sigset_t launcher_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGUSR1}) {
    sigaddset(&signals, signal);
  }
  return signals;
}

int pause_for(std::chrono::nanoseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  const sigset_t signals = launcher_signals();
  for (;;) {
    const std::chrono::nanoseconds left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return 0;
    const timespec rest{.tv_sec = left.count() / 1'000'000'000,
                        .tv_nsec = left.count() % 1'000'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &rest);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return signal;
  }
}

}  // namespace fsdp
