// Notices that a call into a library does not come back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "comm/job/collective_record.h"

namespace fsdp {

// For what calls are made: a collective, or a text. It costs nothing until somebody reads it.
class CallPlace {
 public:
  CallPlace(const CollectiveRecord& record) : record_(&record) {}  // NOLINT: what it stands for
  CallPlace(std::string_view text) : text_(text) {}                // NOLINT
  std::string text() const { return record_ == nullptr ? std::string(text_) : describe(*record_); }
  const CollectiveRecord* record() const { return record_; }

 private:
  const CollectiveRecord* record_ = nullptr;
  std::string_view text_;
};

// By a thread that makes no such call itself, so that it always can tell.
class CallWatch {
 public:
  // `on_stuck` hears once of a call that has not come back after `at_most`.
  using OnStuck = std::function<void(std::string_view call, const std::string& where)>;
  CallWatch(std::chrono::milliseconds at_most, OnStuck on_stuck);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // While it lives, a thread makes calls, one after the other. One such thread at a time.
  class Calls {
   public:
    Calls(CallWatch& watch, const CallPlace& place);
    ~Calls();
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;
    // The next one; empty: none for now.
    void next(std::string_view name);

   private:
    CallWatch& watch_;
    const CallPlace place_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Now {
    std::string_view name;
    const CallPlace* place;
    Clock::time_point since;
  };
  void watch();

  const std::chrono::milliseconds at_most_;
  const OnStuck on_stuck_;
  std::mutex mutex_;  // of what follows
  std::optional<Now> now_;
  bool ends_ = false;
  std::condition_variable end_;
  std::thread thread_;
};

}  // namespace fsdp
