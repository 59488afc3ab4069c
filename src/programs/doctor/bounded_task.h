// Runs a task that may never return. For example, a hanging driver blocks the thread that calls it.
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
    kStuck,  // the thread may still run; the process must end without waiting for it
  };
  How how = How::kDone;
  ErrorText failure{};               // set unless `how` is kDone
  std::shared_future<void> ended{};  // ready when the thread of the task has ended
};

// A callback by which a task reports that it is stuck. Any thread may call it, also repeatedly.
using TellStuck = std::function<void(const Error& stuck)>;

// Runs `task` in its own thread and waits for it, for at most `limit`. `name` describes the task in
// errors, for example "asking CUDA for its devices". The result is kFailed if the task threw
// `failure`. It is kStuck if the task called tell_stuck or did not return in time.
// Requires: objects to which the task refers exist until TaskEnd::ended is ready.
TaskEnd run_within(std::chrono::milliseconds limit, const std::string& name,
                   const std::function<void(const TellStuck& tell_stuck)>& task);

}  // namespace fsdp::doctor
