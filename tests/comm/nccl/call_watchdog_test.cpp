// Tests that another thread reports a call that does not return.
#include "comm/nccl/call_watchdog.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace fsdp {
namespace {

using std::chrono::milliseconds;

struct Told {
  std::mutex mutex;
  std::vector<std::string> lines;

  CallWatchdog::OnStuck hear() {
    return [this](std::string_view call, const std::string& where) {
      const std::lock_guard lock(mutex);
      lines.push_back(std::string(call) + " for " + where);
    };
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex);
    return lines;
  }
};

TEST_CASE("calls that come back are not told of, however many there are") {
  Told told;
  CallWatchdog watch(milliseconds(200), told.hear());
  for (int i = 0; i < 100; ++i) {
    CallWatchdog::Calls calls(watch, std::string_view("a place"));
    calls.next("one");
    calls.next("two");
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::this_thread::sleep_for(milliseconds(300));  // no call runs meanwhile
  CHECK(told.all().empty());
}

TEST_CASE("a call that does not come back is told of once, with its name and place") {
  Told told;
  CallWatchdog watch(milliseconds(40), told.hear());
  const auto record = make_record({.tag = {.sequence = 12, .label = "end"}});
  {
    CallWatchdog::Calls calls(watch, record);
    calls.next("ncclGroupStart");
    calls.next("ncclGroupEnd");
    while (told.all().empty()) std::this_thread::sleep_for(milliseconds(2));
    std::this_thread::sleep_for(milliseconds(120));
  }
  REQUIRE(told.all().size() == 1);
  CHECK(told.all().front() == "ncclGroupEnd for " + describe(record));
}

TEST_CASE("time between calls of one thread is not a call's") {
  Told told;
  CallWatchdog watch(milliseconds(60), told.hear());
  CallWatchdog::Calls calls(watch, std::string_view("a place"));
  calls.next("one");
  calls.next({});
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(told.all().empty());
}

}  // namespace
}  // namespace fsdp
