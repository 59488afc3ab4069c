#include "comm/job/peer_watch.h"

namespace fsdp {
namespace {

// The time in which a launcher may report how a process ended.
constexpr auto kLauncherGrace = std::chrono::milliseconds(500);
constexpr int kSlowPart = 3;  // a rank is slow after timeout / kSlowPart

}  // namespace

void PeerWatch::begin() {
  begun_ = Clock::now();
  vanished_.reset();
  told_slow_ = false;
}

std::chrono::milliseconds PeerWatch::waited() const {
  if (!begun_) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *begun_);
}

bool PeerWatch::becomes_slow() {
  if (told_slow_ || waited() < timeout_ / kSlowPart) return false;
  return told_slow_ = true;
}

bool PeerWatch::may_tell(PeerEnd end, bool has_launcher) {
  if (end != PeerEnd::kProcessIsGone || !has_launcher) return true;
  // kLauncherGrace counts from the first call after begin(). The caller calls this function again
  // until kLauncherGrace has passed.
  if (!vanished_) vanished_ = Clock::now();
  return Clock::now() - *vanished_ >= kLauncherGrace;
}

}  // namespace fsdp
