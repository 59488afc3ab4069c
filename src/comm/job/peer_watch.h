// The rules of a wait for other ranks, which are the same for all back-ends. The rules define when
// a rank is slow, when the time-out has passed, and when the end of a process may be reported.
#pragma once

#include <chrono>
#include <optional>

#include "comm/job/failure.h"

namespace fsdp {

// The state of a wait. One PeerWatch is used for one wait after the other, by one thread at a time.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PeerWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Starts a wait.
  void begin();
  bool has_begun() const { return begun_.has_value(); }
  // Returns how long the current wait has lasted. Returns 0 before the first wait.
  std::chrono::milliseconds waited() const;
  // Subtracts `time` from the wait. During `time` this process was stopped, for example by Ctrl-Z.
  // Ctrl-Z stops the whole job, so no peer was late.
  void take_off(Clock::duration time) { *begun_ += time; }

  // Returns true once per wait, when a third of the time-out has passed. A rank that has not
  // arrived by then is slow.
  bool becomes_slow();
  bool is_over() const { return waited() >= timeout_; }

  // Returns true if the end of a peer may be reported. If there is a launcher, the end of a
  // vanished process is reported only after half a second, because the launcher may still report
  // how the process ended.
  bool may_tell(PeerEnd end, bool has_launcher);

 private:
  const std::chrono::milliseconds timeout_;
  std::optional<Clock::time_point> begun_;     // empty: no wait has begun
  std::optional<Clock::time_point> vanished_;  // when the process was first seen to be gone
  bool told_slow_ = false;
};

}  // namespace fsdp
