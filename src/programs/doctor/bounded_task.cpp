#include "programs/doctor/bounded_task.h"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace fsdp::doctor {
namespace {

// The first reported end of a task. The task, tell_stuck and the time limit can each report an end.
class FirstEnd {
 public:
  void tell(TaskEnd::How how, ErrorText failure) {
    const std::lock_guard lock(mutex_);
    if (end_) return;
    end_ = TaskEnd{.how = how, .failure = std::move(failure)};
    told_.notify_all();
  }
  // Waits for the end. `late` is the failure to report if there is no end within `limit`.
  TaskEnd wait(std::chrono::milliseconds limit, ErrorText late) {
    std::unique_lock lock(mutex_);
    told_.wait_for(lock, limit, [this] { return end_.has_value(); });
    if (!end_) end_ = TaskEnd{.how = TaskEnd::How::kStuck, .failure = std::move(late)};
    return *end_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::optional<TaskEnd> end_;
};

}  // namespace

TaskEnd run_within(std::chrono::milliseconds limit, const std::string& name,
                   const std::function<void(const TellStuck& tell_stuck)>& task) {
  // The object is shared with the thread, which may outlive the caller.
  const auto first = std::make_shared<FirstEnd>();
  std::promise<void> at_exit;
  std::shared_future<void> ended = at_exit.get_future().share();
  std::thread([first, task = task, at_exit = std::move(at_exit)]() mutable {
    try {
      task([first](const Error& stuck) { first->tell(TaskEnd::How::kStuck, stuck.text()); });
      first->tell(TaskEnd::How::kDone, {});
    } catch (const Error& error) {
      first->tell(TaskEnd::How::kFailed, error.text());
    } catch (const std::exception& error) {
      first->tell(TaskEnd::How::kFailed, {.what = std::string(message_of(error))});
    }
    // The captures of the task are destroyed before the thread is reported as ended.
    task = nullptr;
    at_exit.set_value_at_thread_exit();
  }).detach();
  const std::chrono::duration<double> seconds = limit;
  TaskEnd end = first->wait(
      limit, {.what = fmt::format("{} did not return within {:.1f} s", name, seconds.count())});
  // Waits for the end of the thread, unless the thread is stuck. The thread is detached, so it
  // cannot be joined.
  if (end.how != TaskEnd::How::kStuck) ended.wait();
  end.ended = std::move(ended);
  return end;
}

}  // namespace fsdp::doctor
