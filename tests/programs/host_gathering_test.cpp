#include "programs/host_gathering.h"

#include <doctest/doctest.h>

#include <csignal>
#include <vector>

using fsdp::FailedStart;
using fsdp::HostCall;
using fsdp::HostGathering;
using fsdp::HostMember;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using State = HostGathering::State;
using Time = HostGathering::Time;

namespace {

constexpr Time kStart{seconds(1000)};
constexpr FailedStart kPeerFailed{.code = 75, .wait_status = 75 << 8};

// The launchers of hosts that call.
struct Callers {
  HostGathering& gathering;
  uint64_t beat = 0;

  void call(int host, Time now, int attempt = -1, const FailedStart& end = {}) {
    gathering.hear(host, {.id = id_of(host), .beat = ++beat, .attempt = attempt, .end = end}, now);
  }
  static uint64_t id_of(int host) { return 100 + static_cast<uint64_t>(host); }
};

std::vector<HostMember> members(const std::vector<int>& hosts) {
  std::vector<HostMember> members;
  for (const int host : hosts) {
    members.push_back({.host = host, .id = host == 0 ? 0 : Callers::id_of(host)});
  }
  return members;
}

}  // namespace

TEST_CASE("A call has the same content after it was sent as a text") {
  const HostCall call{
      .id = ~uint64_t{0},
      .beat = 7,
      .attempt = -1,
      .end = {.code = 75, .rank = 3, .wait_status = SIGKILL, .out_of_memory = true}};
  const HostCall read = fsdp::host_call_of(fsdp::text_of(call));
  CHECK(read.id == call.id);
  CHECK(read.beat == 7);
  CHECK(read.attempt == -1);
  CHECK(read.end.code == 75);
  CHECK(read.end.rank == 3);
  CHECK(read.end.wait_status == SIGKILL);
  CHECK(read.end.out_of_memory);
}

TEST_CASE("A fixed number of hosts starts when all of them wait, and gives up after ten minutes") {
  HostGathering gathering({.least = 3, .most = 3, .wait = seconds(30)}, kStart);
  Callers callers{gathering};
  callers.call(2, kStart);
  CHECK(gathering.state(kStart, seconds(0)) == State::kWaits);
  CHECK(gathering.state(kStart + minutes(9), seconds(0)) == State::kWaits);
  CHECK(gathering.state(kStart + minutes(10), seconds(0)) == State::kGivesUp);
  const Time late = kStart + minutes(9);
  callers.call(1, late);
  callers.call(2, late);
  CHECK(gathering.state(late, seconds(0)) == State::kStarts);
  CHECK(gathering.waiting(late) == members({0, 1, 2}));
}

TEST_CASE("With MIN:MAX the job starts at once with all hosts, and later with those that came") {
  HostGathering gathering({.least = 2, .most = 4, .wait = seconds(30)}, kStart);
  Callers callers{gathering};
  const Time over = kStart + seconds(30);
  CHECK(gathering.state(over, seconds(0)) == State::kWaits);  // host 0 is alone
  callers.call(3, over - milliseconds(1));
  CHECK(gathering.state(over - milliseconds(1), seconds(0)) == State::kWaits);
  CHECK(gathering.state(over, seconds(0)) == State::kStarts);
  CHECK(gathering.waiting(over) == members({0, 3}));
  CHECK(gathering.state(over, seconds(31)) == State::kWaits);  // the pause before a restart
  callers.call(1, kStart + seconds(1));
  callers.call(2, kStart + seconds(1));
  callers.call(3, kStart + seconds(1));
  CHECK(gathering.state(kStart + seconds(1), seconds(0)) == State::kStarts);
}

TEST_CASE("A launcher that has stopped calling does not wait any more") {
  HostGathering gathering({.least = 1, .most = 2, .wait = seconds(5)}, kStart);
  const HostCall call{.id = 5, .beat = 1};
  gathering.hear(1, call, kStart);
  const Time later = kStart + HostGathering::kSilent;
  gathering.hear(1, call, later);  // the store still has the same text
  CHECK(gathering.waiting(later - milliseconds(1)).size() == 2);
  CHECK(gathering.waiting(later) == members({0}));
  CHECK(gathering.state(later, seconds(0)) == State::kWaits);
  CHECK(gathering.state(kStart + seconds(5), seconds(0)) == State::kStarts);
}

TEST_CASE("The hosts of a start report, or count as lost after their time") {
  for (const int wait : {1, 20}) {
    HostGathering gathering({.least = 1, .most = 3, .wait = seconds(wait)}, kStart);
    Callers callers{gathering};
    callers.call(1, kStart);
    callers.call(2, kStart);
    gathering.end_start(0, members({0, 1, 2}), kStart);
    CHECK_FALSE(gathering.has_reports(kStart));
    callers.call(1, kStart, 0, kPeerFailed);
    CHECK_FALSE(gathering.has_reports(kStart));
    const Time over = kStart + seconds(wait == 1 ? 5 : 20);
    CHECK_FALSE(gathering.has_reports(over - milliseconds(1)));
    CHECK(gathering.has_reports(over));
    SUBCASE("report") { callers.call(2, kStart, 0, kPeerFailed); }
    // Another launcher of host 2 has come, so the first one has ended.
    SUBCASE("new launcher") { gathering.hear(2, {.id = 7, .beat = 1}, kStart); }
    CHECK(gathering.has_reports(kStart));
  }
}

TEST_CASE("The cause of a failed start is the end that explains the others") {
  const FailedStart killed{.code = 75, .rank = 2, .wait_status = SIGKILL, .out_of_memory = true};
  const FailedStart needs_change{.code = 65, .rank = 3, .wait_status = 65 << 8};
  const FailedStart io_error{.code = 74, .rank = 1, .wait_status = 74 << 8};
  const auto cause = [](const FailedStart& own, const FailedStart& first,
                        const FailedStart& second) {
    HostGathering gathering({.least = 3, .most = 3}, kStart);
    Callers callers{gathering};
    gathering.end_start(4, members({0, 1, 2}), kStart);
    callers.call(1, kStart, 4, first);
    callers.call(2, kStart, 4, second);
    FailedStart with_progress = own;
    with_progress.step = 12;
    with_progress.saved = 2;
    const FailedStart found = gathering.cause(with_progress);
    // Rank 0 tells the progress.
    CHECK(found.step == 12);
    CHECK(found.saved == 2);
    return found;
  };
  CHECK(cause(kPeerFailed, kPeerFailed, killed).rank == 2);
  CHECK(cause(kPeerFailed, kPeerFailed, killed).out_of_memory);
  CHECK(cause(kPeerFailed, killed, needs_change).code == 65);
  CHECK(cause(io_error, kPeerFailed, kPeerFailed).code == 74);
  CHECK(cause(io_error, killed, kPeerFailed).rank == 2);
  CHECK(cause(kPeerFailed, kPeerFailed, {}).code == 75);
  CHECK(cause({}, {}, {}).code == 0);
  CHECK(cause({}, {}, kPeerFailed).code == 75);  // ranks of host 0 ended well
}

TEST_CASE("Reports of earlier starts and of other launchers are not the cause") {
  const FailedStart needs_change{.code = 70, .rank = 3, .wait_status = 70 << 8};
  HostGathering gathering({.least = 1, .most = 3}, kStart);
  Callers callers{gathering};
  gathering.end_start(4, members({0, 1, 2}), kStart);
  callers.call(1, kStart, 3, needs_change);
  gathering.hear(2, {.id = 7, .beat = 1, .attempt = 4, .end = needs_change}, kStart);
  CHECK(gathering.cause(kPeerFailed).code == 75);
}

TEST_CASE("Each wait begins when the ranks of host 0 have ended") {
  HostGathering gathering({.least = 1, .most = 2, .wait = seconds(5)}, kStart);
  const Time end = kStart + minutes(60);
  gathering.end_start(0, members({0, 1}), end);
  CHECK(gathering.state(end + seconds(4), seconds(1)) == State::kWaits);
  CHECK(gathering.state(end + seconds(5), seconds(1)) == State::kStarts);
}
