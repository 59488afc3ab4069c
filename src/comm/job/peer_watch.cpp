#include "comm/job/peer_watch.h"

namespace fsdp {
namespace {

constexpr auto kLauncherGrace = std::chrono::milliseconds(500);
constexpr int kSlowPart = 3;  // of the time-out

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
  if (!vanished_) vanished_ = Clock::now();
  return Clock::now() - *vanished_ >= kLauncherGrace;
}

}  // namespace fsdp
