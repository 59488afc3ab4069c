#include "comm/nccl/call_watchdog.h"

#include <algorithm>
#include <utility>

namespace fsdp {

CallWatchdog::CallWatchdog(std::chrono::milliseconds at_most, OnStuck on_stuck)
    : at_most_(at_most),
      on_stuck_(std::move(on_stuck)),
      thread_([this](const std::stop_token& ends) { watch(ends); }) {}

CallWatchdog::Calls::Calls(CallWatchdog& watch, const CallPlace& place)
    : watch_(watch), place_(place) {}

CallWatchdog::Calls::~Calls() { next({}); }

void CallWatchdog::Calls::next(std::string_view name) {
  const std::lock_guard lock(watch_.mutex_);
  // `now_` points to place_, so it must be empty when a Calls object is destroyed.
  watch_.now_.reset();
  if (!name.empty()) watch_.now_ = Now{.name = name, .place = &place_, .since = Clock::now()};
}

// Waits for a call that lasts too long. Reads the place under the mutex, because the place exists
// only during the call.
void CallWatchdog::watch(const std::stop_token& ends) {
  // With this pause a stuck call is noticed after at most 17/16 of the time limit.
  const auto pause = std::min<std::chrono::milliseconds>(at_most_ / 16, std::chrono::seconds(1));
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return ends.stop_requested(); };
  while (!end_.wait_for(lock, ends, pause, ended)) {
    if (!now_ || Clock::now() - now_->since < at_most_) continue;
    const std::string name(now_->name);
    const std::string where = now_->place->text();
    // The mutex is released, because on_stuck may wait for other threads that need it.
    lock.unlock();
    on_stuck_(name, where);
    lock.lock();
    // One report is enough, because nothing can end the call. From now on this thread only waits
    // until the watch ends.
    end_.wait(lock, ends, ended);
    return;
  }
}

}  // namespace fsdp
