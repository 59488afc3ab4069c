#include "programs/doctor/bounded_task.h"

#include <doctest/doctest.h>

#include <stdexcept>

namespace fsdp::doctor {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60'000};

bool has_ended(const TaskEnd& end) {
  return end.ended.wait_for(milliseconds(0)) == std::future_status::ready;
}

TEST_CASE("a task that comes back is done, and its thread is gone") {
  bool ran = false;
  const TaskEnd end = run_within(kLong, "a task", [&ran](const TellStuck&) { ran = true; });
  CHECK(ran);
  CHECK(end.how == TaskEnd::How::kDone);
  CHECK(has_ended(end));
}

TEST_CASE("what a task throws is told, with its hint") {
  const TaskEnd end = run_within(kLong, "a task", [](const TellStuck&) {
    throw DeviceError({.what = "lost", .where = "cuda:1", .hint = "reboot"});
  });
  CHECK(end.how == TaskEnd::How::kFailed);
  CHECK(end.failure.what == "lost");
  CHECK(end.failure.where == "cuda:1");
  CHECK(end.failure.hint == "reboot");
  CHECK(has_ended(end));
  const TaskEnd other = run_within(
      kLong, "a task", [](const TellStuck&) { throw std::runtime_error("no error of ours"); });
  CHECK(other.how == TaskEnd::How::kFailed);
  CHECK(other.failure.what == "no error of ours");
}

TEST_CASE("a task that does not come back is left when its time is over") {
  std::promise<void> go_on;
  const std::shared_future<void> may_go_on = go_on.get_future().share();
  const TaskEnd end = run_within(milliseconds(10), "asking CUDA",
                                 [may_go_on](const TellStuck&) { may_go_on.wait(); });
  CHECK(end.how == TaskEnd::How::kStuck);
  CHECK(end.failure.what == "asking CUDA did not return within 0.0 s");
  CHECK(!has_ended(end));
  go_on.set_value();
  end.ended.wait();
}

TEST_CASE("a task that says itself that it is stuck is left at once, and the first word counts") {
  std::promise<void> go_on;
  const std::shared_future<void> may_go_on = go_on.get_future().share();
  const TaskEnd end = run_within(kLong, "a task", [may_go_on](const TellStuck& tell_stuck) {
    tell_stuck(CommError({.what = "ncclGroupEnd did not return"}));
    tell_stuck(CommError({.what = "something else"}));
    may_go_on.wait();
    throw std::runtime_error("let go");
  });
  CHECK(end.how == TaskEnd::How::kStuck);
  CHECK(end.failure.what == "ncclGroupEnd did not return");
  CHECK(!has_ended(end));
  go_on.set_value();
  end.ended.wait();
}

}  // namespace
}  // namespace fsdp::doctor
