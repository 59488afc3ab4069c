// Runs a task that may never return: a driver that hangs blocks the thread that calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>

#include "fsdp/error.h"

namespace fsdp::doctor {

// The end of a task.
struct TaskEnd {
  enum class How : uint8_t {
    kDone,
    kFailed,
    kStuck,  // its thread may still run: the process must end without waiting for it
  };
  How how = How::kDone;
  ErrorText failure{};               // unless kDone
  std::shared_future<void> ended{};  // ready when its thread has ended
};

// A callback by which a task reports that it is stuck. Any thread may call it, any number of times.
using TellStuck = std::function<void(const Error& stuck)>;

// Runs `task` on its own thread and waits for it, at most `limit`. `name` describes the task in
// errors: "asking CUDA for its devices".
// kFailed: the task threw `failure`. kStuck: it called tell_stuck or did not return in time.
// Requires: objects that the task refers to live until TaskEnd::ended is ready.
TaskEnd run_within(std::chrono::milliseconds limit, const std::string& name,
                   const std::function<void(const TellStuck& tell_stuck)>& task);

}  // namespace fsdp::doctor
