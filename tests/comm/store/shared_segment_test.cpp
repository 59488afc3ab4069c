// Tests ranks of several hosts that share a control segment inside each host, and a store across
// hosts.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/job/process_end.h"
#include "comm/store/store_mesh.h"
#include "fsdp/error.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"
#include "support/store_ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using testing::MemoryStore;
using testing::rank_on_hosts;

constexpr int kHosts = 2;
constexpr int kRanks = 4;  // two on each host
using Body = std::function<void(StoreJob& job)>;

// Calls body(job) in one thread for each rank. Returns the error texts by rank; a text is empty if
// the rank did not throw.
std::vector<std::string> run_on_hosts(milliseconds timeout, const Body& body) {
  MemoryStore store;
  const int each = kRanks / kHosts;
  std::vector<std::shared_ptr<Buffer>> memories;
  std::vector<ControlSegment> segments;
  for (int host = 0; host < kHosts; ++host) {
    const RankRange local{host * each, each};
    memories.push_back(
        std::make_shared<Buffer>(allocate_host(ControlSegment::bytes_for(kRanks, local))));
    segments.emplace_back(memories.back()->data(), kRanks, local);
    for (int rank = 0; rank < kRanks; ++rank) {
      segments.back().status(rank).pid.store(getpid());
      segments.back().status(rank).state.store(RankState::kPresent);
    }
  }
  std::vector<std::string> thrown(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const LaunchEnvironment environment = rank_on_hosts(rank, kRanks, kHosts);
        std::unique_ptr<KeyValueStore> own = store.connect(rank);
        std::vector<PlaceOfRank> places = meet_at_store(*own, environment, timeout);
        const RankRange local = ranks_of_host(*own, environment, places);
        const int host = rank / each;
        CHECK(local == segments[host].local());
        StoreJob job = join_over_store({.rank = rank,
                                        .places = std::move(places),
                                        .memory = memories[host],
                                        .control = segments[host],
                                        .store = std::move(own),
                                        .timeout = timeout,
                                        .server = 0},
                                       {.timeout = timeout});
        body(job);
      } catch (const std::exception& error) {
        thrown[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

const std::vector<std::string> kNoErrors(kRanks);

void meet(StoreJob& job) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "meet");
  job.control->barrier({.label = "meet"}, *stream);
}

void post(StoreJob& job, uint64_t place, std::string_view label = "x") {
  job.plane->post(
      {.record = make_record({.tag = {.sequence = place, .label = label}}), .communicator = place});
}

void wait_until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(milliseconds(5));
}

TEST_CASE("posts of the own host are read at once, those of the other host over the store") {
  CHECK(run_on_hosts(milliseconds(30'000), [](StoreJob& job) {
          ControlPlane& plane = *job.plane;
          const int rank = plane.rank();
          post(job, static_cast<uint64_t>(10 + rank));
          meet(job);
          for (int peer = 0; peer < kRanks; ++peer) {
            const auto last = static_cast<uint64_t>(10 + peer);
            const bool is_local = peer / 2 == rank / 2;
            if (is_local) CHECK(plane.last_posted(peer, last) == last);
            CHECK(plane.posted_mark(peer, last).has_value() == is_local);
            if (!is_local) plane.share_posted();
            wait_until([&] { return plane.last_posted(peer, last) == last; });
            const auto posted = plane.posted(peer, last);
            CHECK((posted && posted->communicator == last));
            CHECK_FALSE(plane.posted(peer, last + 1));
          }
          meet(job);
        }) == kNoErrors);
}

// A report that another process of the host has read earlier or later must not change the last
// place of a local rank, must not move that of another rank back, and must not be compared with the
// hash of another report.
TEST_CASE("ranks that post at different speeds do not differ, and their last places only grow") {
  std::atomic<int> running = kRanks;
  CHECK(run_on_hosts(milliseconds(30'000), [&](StoreJob& job) {
          ControlPlane& plane = *job.plane;
          std::array<uint64_t, kRanks> last{};
          uint64_t place = 0;
          const auto look = [&] {
            for (int peer = 0; peer < kRanks; ++peer) {
              const uint64_t now = plane.last_posted(peer, 1);
              CHECK(now >= last[peer]);
              last[peer] = now;
            }
            CHECK_FALSE(plane.first_failure());
          };
          while (place < 60) {
            post(job, ++place);
            for (int i = 0; i < 5; ++i) {
              look();
              std::this_thread::sleep_for(milliseconds(1 + plane.rank()));
            }
          }
          --running;
          wait_until([&] {
            look();
            return running == 0 && *std::ranges::min_element(last) == place;
          });
          meet(job);
        }) == kNoErrors);
}

TEST_CASE("ranks of two hosts that issue different collectives are both named") {
  CHECK(run_on_hosts(milliseconds(30'000), [](StoreJob& job) {
          for (uint64_t place = 1; place <= 9; ++place) {
            post(job, place, place == 7 && job.plane->rank() >= 2 ? "b" : "a");
          }
          wait_until([&] { return job.plane->first_failure().has_value(); });
          const std::string what = job.plane->first_failure()->text.what;
          CAPTURE(what);
          CHECK(what.find("issued barrier 'a' #7") != std::string::npos);
          CHECK(what.find("issued barrier 'b' #7") != std::string::npos);
        }) == kNoErrors);
}

TEST_CASE("a failure that the launcher stores in the segment of its host reaches the other host") {
  CHECK(run_on_hosts(milliseconds(30'000), [](StoreJob& job) {
          meet(job);
          if (job.plane->rank() == 3) {  // as fsdp-run does when rank 2 is killed
            report_failure(job.relay->control(), {.rank = 2,
                                                  .code = ExitCode::kPeerFailed,
                                                  .text = {.what = describe_end(2, SIGKILL)}});
          }
          wait_until([&] { return job.plane->first_failure().has_value(); });
          CHECK(job.plane->first_failure()->rank == 2);
          CHECK(job.plane->first_failure()->text.what == "rank 2 was killed by signal 9 (SIGKILL)");
        }) == kNoErrors);
}

TEST_CASE("a rank that has finished is known at once on its host, and then on the other host") {
  CHECK(run_on_hosts(milliseconds(30'000), [](StoreJob& job) {
          meet(job);
          if (job.plane->rank() == 1) return;
          wait_until([&] { return job.plane->end_of(1) == PeerEnd::kFinished; });
          CHECK_THROWS_WITH_AS(meet(job), doctest::Contains("rank 1 left while other ranks"),
                               CommError);
        }) == kNoErrors);
}

TEST_CASE("ranks of a host must have consecutive numbers, as many as each other host") {
  const auto places = [](std::initializer_list<std::pair<const char*, int>> nodes) {
    std::vector<PlaceOfRank> all;
    for (const auto& [node, local_rank] : nodes) {
      all.push_back({.node = node, .host = "h", .local_rank = local_rank});
    }
    return all;
  };
  const auto refused = [](const std::vector<PlaceOfRank>& places, int local_world_size) {
    MemoryStore store;
    const auto connection = store.connect(1);
    const LaunchEnvironment environment{.rank = 1,
                                        .world_size = static_cast<int>(places.size()),
                                        .local_world_size = local_world_size};
    try {
      ranks_of_host(*connection, environment, places);
    } catch (const CommError& error) {
      CHECK(error.exit_code() == 78);
      CHECK(connection->has("failure"));  // the other ranks read it
      return std::string(error.text().what);
    }
    return std::string();
  };
  const std::string none;
  CHECK(refused(places({{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}}), 2) == none);
  CHECK(refused(places({{"a", 0}, {"b", 0}, {"c", 0}}), 1) == none);
  CHECK(refused(places({{"a", 0}, {"b", 0}, {"a", 1}, {"b", 1}}), 2) ==
        "rank 1 is on host h (node b), expected on the host of rank 0");
  CHECK(refused(places({{"a", 0}, {"a", 1}, {"b", 0}, {"c", 0}}), 2) ==
        "rank 3 is on host h (node c), expected on the host of rank 2");
  CHECK(refused(places({{"a", 0}, {"b", 0}, {"b", 1}}), 1) ==
        "host h (node b) has more ranks than the host of rank 0, which has 1");
  CHECK(refused(places({{"a", 1}, {"a", 0}, {"b", 0}, {"b", 1}}), 2) ==
        "rank 0 has LOCAL_RANK=1, expected 0: the first rank of host h (node a) is rank 0");
  CHECK(refused(places({{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}}), 1) ==
        "rank 1 has LOCAL_WORLD_SIZE=1, but the number of ranks on host h (node a) is 2");
}

}  // namespace
}  // namespace fsdp
