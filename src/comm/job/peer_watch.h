// The rules of a wait for other ranks, the same for all back-ends: when a rank is slow, when the
// time is over, and when the end of a process may be reported.
#pragma once

#include <chrono>
#include <optional>

#include "comm/job/failure.h"

namespace fsdp {

// The state of one wait after the other. Used by one thread at a time.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PeerWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Starts a wait.
  void begin();
  bool has_begun() const { return begun_.has_value(); }
  // Returns how long this wait has lasted; 0 before the first.
  std::chrono::milliseconds waited() const;
  // Subtracts `time` from the wait: this process was stopped meanwhile, as the whole job is by
  // Ctrl-Z, and no peer was late.
  void take_off(Clock::duration time) { *begun_ += time; }

  // Returns true once a wait, after a third of the time-out: its ranks are slow then.
  bool becomes_slow();
  bool is_over() const { return waited() >= timeout_; }

  // Returns true if the end of a peer may be reported. If there is a launcher, the end of a
  // vanished process waits for half a second, because the launcher may still report how it ended.
  bool may_tell(PeerEnd end, bool has_launcher);

 private:
  const std::chrono::milliseconds timeout_;
  std::optional<Clock::time_point> begun_;     // empty: nothing has been waited for
  std::optional<Clock::time_point> vanished_;  // when a process was first seen to be gone
  bool told_slow_ = false;
};

}  // namespace fsdp
