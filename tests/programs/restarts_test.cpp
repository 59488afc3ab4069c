#include "programs/restarts.h"

#include <doctest/doctest.h>

#include <csignal>
#include <vector>

using fsdp::FailedStart;
using fsdp::RestartOptions;
using fsdp::Restarts;

namespace {

FailedStart killed(int rank, int64_t step, int64_t saved = 0) {
  return {.code = 75, .rank = rank, .wait_status = SIGKILL, .step = step, .saved = saved};
}

}  // namespace

TEST_CASE("Without --max-restarts a job is not restarted, and no reason is given") {
  Restarts restarts({}, 2);
  CHECK(!restarts.after(killed(1, 3)));
  CHECK(restarts.reason().empty());
}

TEST_CASE("The pauses double up to 30 seconds, and the last restart is the given number") {
  Restarts restarts({.max_restarts = 7}, 2);
  std::vector<int64_t> pauses;
  for (int64_t step = 0; const auto next = restarts.after(killed(0, step)); ++step) {
    CHECK(next->ranks == 2);
    pauses.push_back(next->pause.count());
  }
  CHECK(pauses == std::vector<int64_t>{1, 2, 4, 8, 16, 30, 30});
  CHECK(restarts.reason() == "7 restarts did not help");
}

TEST_CASE("A pause that is given does not grow") {
  Restarts restarts({.max_restarts = 2, .pause = std::chrono::seconds(0)}, 1);
  CHECK(restarts.after(killed(0, 1))->pause.count() == 0);
  CHECK(restarts.reason() == "restart 1 of 2 in 0 s, with 1 rank");
  CHECK(restarts.after(killed(0, 2))->pause.count() == 0);
}

TEST_CASE("A new checkpoint allows all restarts again") {
  Restarts restarts({.max_restarts = 1}, 2);
  for (int64_t step = 10; step < 60; step += 10) {
    const auto next = restarts.after(killed(0, step, /*saved=*/1));
    REQUIRE(next);
    CHECK(next->pause.count() == 1);
  }
  CHECK(!restarts.after(killed(0, 60)));
  CHECK(restarts.reason() == "1 restart did not help");
}

TEST_CASE("A failure that needs a change is not restarted") {
  for (const int code : {64, 65, 70, 73, 78}) {
    CAPTURE(code);
    Restarts restarts({.max_restarts = 3}, 2);
    CHECK(!restarts.after({.code = code, .wait_status = code << 8, .step = 5}));
    CHECK(restarts.reason() == "not restarted: after code " + std::to_string(code) +
                                   " a restart is likely to end the same way");
  }
  for (const int code : {1, 3, 74, 75}) {
    CAPTURE(code);
    Restarts restarts({.max_restarts = 3}, 2);
    CHECK(restarts.after({.code = code, .wait_status = code << 8, .step = 5}));
  }
}

TEST_CASE("A crash is restarted unless it is the same at the same step") {
  const auto crash = [](int signal, int64_t step) {
    return FailedStart{.code = 75, .rank = 1, .wait_status = signal, .step = step};
  };
  Restarts restarts({.max_restarts = 9}, 2);
  CHECK(restarts.after(crash(SIGSEGV, 7)));
  CHECK(restarts.after(crash(SIGSEGV, 8)));
  CHECK(restarts.after(crash(SIGABRT, 8)));
  CHECK(!restarts.after(crash(SIGABRT, 8)));
  CHECK(restarts.reason() ==
        "not restarted: rank 1 was killed by signal 6 (SIGABRT) twice in a row after step 8");
  Restarts silent({.max_restarts = 9}, 2);  // of a program that does not tell its steps
  CHECK(silent.after(crash(SIGSEGV, -1)));
  CHECK(!silent.after(crash(SIGSEGV, -1)));
  Restarts kills({.max_restarts = 9}, 2);  // from outside
  CHECK(kills.after(killed(1, 8)));
  CHECK(kills.after(killed(1, 8)));
}

TEST_CASE("A job whose memory is short twice in a row is not restarted") {
  FailedStart short_of_memory = killed(0, 4);
  short_of_memory.out_of_memory = true;
  Restarts restarts({.max_restarts = 9}, 2);
  CHECK(restarts.after(short_of_memory));
  CHECK(restarts.after(killed(0, 4)));
  CHECK(restarts.after(short_of_memory));
  CHECK(!restarts.after(short_of_memory));
  CHECK(restarts.reason() == "not restarted: memory was short twice in a row");
}

TEST_CASE("A rank that fails three times before the first step is left out") {
  Restarts restarts({.max_restarts = 9, .min_ranks = 2}, 3);
  CHECK(restarts.after(killed(2, -1))->ranks == 3);
  CHECK(restarts.after(killed(2, -1))->ranks == 3);
  CHECK(restarts.after(killed(1, -1))->ranks == 3);  // another rank
  CHECK(restarts.after(killed(2, -1))->ranks == 2);
  CHECK(restarts.reason() ==
        "restart 4 of 9 in 8 s, with 2 ranks: rank 2 failed 3 times before its first step");
  for (int i = 0; i < 4; ++i) CHECK(restarts.after(killed(1, -1))->ranks == 2);  // --min-ranks

  Restarts steps({.max_restarts = 9, .min_ranks = 1}, 2);
  for (int i = 0; i < 2; ++i) CHECK(steps.after(killed(1, -1))->ranks == 2);
  CHECK(steps.after(killed(1, 5))->ranks == 2);  // it has done a step
  for (int i = 0; i < 2; ++i) CHECK(steps.after(killed(1, -1))->ranks == 2);
  CHECK(steps.after(killed(1, -1))->ranks == 1);

  Restarts fixed({.max_restarts = 9}, 2);
  for (int i = 0; i < 5; ++i) CHECK(fixed.after(killed(1, -1))->ranks == 2);
}
