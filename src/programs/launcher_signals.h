// The signals to a launcher.
#pragma once

#include <signal.h>

#include <chrono>

namespace fsdp {

// Returns the signals that the launcher receives by sigtimedwait. It blocks them before it starts
// ranks.
sigset_t launcher_signals();

// Pauses. If a signal arrives that ends the job, returns this signal at once. Otherwise returns 0
// after `time`. Requires: the caller has blocked launcher_signals().
int pause_for(std::chrono::nanoseconds time);

}  // namespace fsdp
