// Detects calls into a library that do not return.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "comm/job/call_place.h"

namespace fsdp {

// Watches calls from its own thread, which makes no such calls, so the watchdog cannot hang.
class CallWatchdog {
 public:
  // Calls `on_stuck` once, for a call that has not returned after `at_most`.
  using OnStuck = std::function<void(std::string_view call, const std::string& where)>;
  CallWatchdog(std::chrono::milliseconds at_most, OnStuck on_stuck);

  // A scope in which a thread makes calls, one after the other. Only one thread may be in such a
  // scope.
  class Calls {
   public:
    Calls(CallWatchdog& watch, const CallPlace& place);
    ~Calls();
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;
    // Begins the next call. An empty name means that no call is in progress any more.
    void next(std::string_view name);

   private:
    CallWatchdog& watch_;
    const CallPlace place_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Now {
    std::string_view name;
    const CallPlace* place;
    Clock::time_point since;
  };
  void watch(const std::stop_token& ends);

  const std::chrono::milliseconds at_most_;
  const OnStuck on_stuck_;
  std::mutex mutex_;  // guards the members below
  std::optional<Now> now_;
  std::condition_variable_any end_;
  std::jthread thread_;  // the last member, because it uses the others
};

}  // namespace fsdp
