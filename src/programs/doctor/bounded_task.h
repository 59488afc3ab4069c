// A task that may never come back: a driver that hangs keeps the thread that asks it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>

#include "fsdp/error.h"

namespace fsdp::doctor {

struct TaskEnd {
  enum class How : uint8_t {
    kDone,
    kFailed,
    kStuck,  // its thread may still run: the process has to end without waiting for it
  };
  How how = How::kDone;
  ErrorText failure{};               // unless kDone
  std::shared_future<void> ended{};  // when its thread has
};

// Any thread may call it, any number of times.
using TellStuck = std::function<void(const Error& stuck)>;

// Runs `task` on a thread of its own. kFailed: it threw that. kStuck: it has told so, or has not
// come back within `limit`; what it refers to must live until its thread has ended. `name` is what
// it does: "asking CUDA for its devices".
TaskEnd run_within(std::chrono::milliseconds limit, const std::string& name,
                   const std::function<void(const TellStuck& tell_stuck)>& task);

}  // namespace fsdp::doctor
