// The judge of a wait for other ranks, the same for everything that carries collectives: when a
// rank is slow, when the time is over, and whether the end of a process can be told by now.
#pragma once

#include <chrono>
#include <optional>

#include "comm/job/failure.h"

namespace fsdp {

// Judges one wait after the other; used by one thread at a time.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PeerWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Starts a wait.
  void begin();
  bool has_begun() const { return begun_.has_value(); }
  std::chrono::milliseconds waited() const;
  // Takes `time` off the wait: this process was stopped meanwhile, as the whole job is by Ctrl-Z,
  // and no peer was late.
  void take_off(Clock::duration time) { *begun_ += time; }

  // Returns true once a wait, when it has lasted a third of the time-out: its ranks are slow then.
  bool becomes_slow();
  bool is_over() const { return waited() >= timeout_; }

  // Returns true if the end of a peer may be reported. That of a process that has vanished may not
  // for half a second if there is a launcher, which may still say how it ended.
  bool may_tell(PeerEnd end, bool has_launcher);

 private:
  const std::chrono::milliseconds timeout_;
  std::optional<Clock::time_point> begun_;     // empty: nothing has been waited for
  std::optional<Clock::time_point> vanished_;  // when a process was first seen to be gone
  bool told_slow_ = false;
};

}  // namespace fsdp
