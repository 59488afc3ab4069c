// Starts the 1,024 ranks of a large job, as threads that meet at a real store over sockets.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/store/ranks_of_job.h"
#include "comm/support/served_store.h"
#include "support/store_ranks.h"

namespace fsdp {
namespace {

rlimit limit_of_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

// Both ends of each connection are in this process.
bool may_open(int ranks) {
  raise_descriptor_limit();
  return limit_of_files().rlim_cur > static_cast<rlim_t>(2 * ranks + 256);
}

TEST_CASE("the limit of open files is raised once, as far as the system allows") {
  rlimit low = limit_of_files();
  low.rlim_cur = std::min<rlim_t>(low.rlim_max, 200);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  CHECK(raise_descriptor_limit() == (low.rlim_max > 200));
  CHECK(limit_of_files().rlim_cur == std::min<rlim_t>(low.rlim_max, 1 << 20));
  CHECK_FALSE(raise_descriptor_limit());
}

// See [Note: the cost of a start at the store].
TEST_CASE("the ranks of a large job meet at one store, with the messages that the note names") {
  constexpr int kRanks = 1024;
  if (!may_open(kRanks)) {
    MESSAGE("skipped: ulimit -n is too low");
    return;
  }
  const testing::ServedStore served;
  std::vector<std::thread> threads;
  std::vector<size_t> places(static_cast<size_t>(kRanks));
  const auto begin = std::chrono::steady_clock::now();
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      LaunchEnvironment environment = testing::rank_on_hosts(rank, kRanks, kRanks / 4);
      const auto store = served.connect();
      const auto met = meet_at_store(*store, environment, std::chrono::seconds(120));
      places[static_cast<size_t>(rank)] = met.size();
      CHECK(met[static_cast<size_t>(kRanks - 1)].node == std::to_string(kRanks / 4 - 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  CHECK(places == std::vector<size_t>(static_cast<size_t>(kRanks), static_cast<size_t>(kRanks)));
  const auto& counts = served.server->counts();
  CHECK(counts.admitted == kRanks);
  for (const StoreRequest each : {StoreRequest::kAdd, StoreRequest::kSet, StoreRequest::kGet}) {
    CHECK(counts.of(each) == kRanks);
  }
  const int64_t waits = counts.of(StoreRequest::kWait);
  CHECK(waits >= kRanks);
  // A wait that times out is followed by one search for a refusal; the last search ends the start.
  CHECK(counts.of(StoreRequest::kHave) == waits);
  const int64_t keys = int64_t{kRanks} * kRanks;
  CHECK(counts.bytes_in < (waits + kRanks) * kRanks * 24 + kRanks * 1024);
  CHECK(counts.bytes_out < keys * 100 + waits * 1024);
  MESSAGE(kRanks << " ranks met within " << time.count() << " s; " << waits << " waits, "
                 << counts.bytes_in.load() << " bytes in, " << counts.bytes_out.load()
                 << " bytes out, " << counts.dropped.load() << " of " << counts.accepted.load()
                 << " connections tried again");
}

}  // namespace
}  // namespace fsdp
