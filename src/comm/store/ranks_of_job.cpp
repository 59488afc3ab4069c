#include "comm/store/ranks_of_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "comm/job/collective_failures.h"
#include "comm/mesh_parts.h"
#include "comm/store/store_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kStep = milliseconds(100);
constexpr auto kStepOfRank = milliseconds(4);  // per rank of the job, to limit the store's load

milliseconds milliseconds_until(Clock::time_point time) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(time - Clock::now()));
}

constexpr auto kHeardWithin = std::chrono::seconds(10);
constexpr char kLeft[] = "left";  // the number of ranks that have ended with the error of the start

std::string who(int rank) { return fmt::format("who/{}", rank); }

// Returns the keys of the places of all ranks.
std::vector<std::string> keys_of_all(int world_size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size; ++rank) keys.push_back(who(rank));
  return keys;
}

// Throws the job's first refusal or failure: the given one, unless another rank has stored one
// before.
[[noreturn]] void refuse_all(KeyValueStore& store, const LaunchEnvironment& environment,
                             std::string what, std::string hint,
                             ExitCode code = ExitCode::kConfiguration) {
  const Failure refusal{
      .rank = environment.rank,
      .code = code,
      .text = {.what = std::move(what), .where = "start of the job", .hint = std::move(hint)}};
  const Failure first = failure_of(store.set_once(kFailureKey, text_of(refusal)));
  throw_failure(first, {});
}

// Throws the refusal that another rank has stored, if there is one.
void hear_refusal(KeyValueStore& store, const LaunchEnvironment& environment) {
  if (store.has(kFailureKey)) refuse_all(store, environment, {}, {});
}

void wait_for_all(KeyValueStore& store, const LaunchEnvironment& environment,
                  const std::vector<std::string>& keys, milliseconds within) {
  const auto deadline = Clock::now() + within;
  // The wait is divided into steps, because a refusal by one rank must end the waits of all ranks.
  const auto step = std::max<milliseconds>(kStep, environment.world_size * kStepOfRank);
  while (!store.wait(keys, std::min(step, milliseconds_until(deadline)))) {
    hear_refusal(store, environment);
    if (Clock::now() < deadline) continue;
    const std::vector<bool> have = store.have(keys);
    for (int rank = 0; rank < environment.world_size; ++rank) {
      if (have[static_cast<size_t>(rank)]) continue;
      refuse_all(store, environment,
                 fmt::format("rank {} of {} did not arrive within {}", rank, environment.world_size,
                             seconds_text(within)),
                 "make the mesh at the start of the program, before long work, and start "
                 "WORLD_SIZE ranks",
                 // fsdp-run has started the ranks of all hosts, so a host is lost.
                 environment.has_launcher_store ? ExitCode::kPeerFailed : ExitCode::kConfiguration);
    }
  }
}

bool is_same_host(const PlaceOfRank& a, const PlaceOfRank& b) {
  return a.node == b.node && a.host == b.host;
}

std::string name_of(const PlaceOfRank& place) {
  if (place.node == place.host) return fmt::format("host {}", place.host);
  return fmt::format("host {} (node {})", place.host, place.node);
}

// The first rule that the places of a job's ranks break.
struct BrokenRule {
  std::string what, hint;
};

// Each host must have as many ranks as the host of rank 0, with consecutive numbers.
std::optional<BrokenRule> broken_rule(const std::vector<PlaceOfRank>& places) {
  const auto count = static_cast<int>(std::ranges::count_if(
      places, [&](const PlaceOfRank& place) { return is_same_host(place, places.front()); }));
  const std::string hint = fmt::format(
      "start {} ranks on every host, numbered host by host, as fsdp-run --nnodes does; if two "
      "hosts "
      "have one name, set FSDP_NODE to another text on each host",
      count);
  for (int rank = 0; rank < static_cast<int>(places.size()); ++rank) {
    const PlaceOfRank& place = places[static_cast<size_t>(rank)];
    const int first = rank - rank % count;
    const auto is_on_host_of = [&](int other) {
      return is_same_host(place, places[static_cast<size_t>(other)]);
    };
    if (!is_on_host_of(first)) {
      return BrokenRule{fmt::format("rank {} is on {}, expected on the host of rank {}", rank,
                                    name_of(place), first),
                        hint};
    }
    if (rank == first && rank > 0 && is_on_host_of(rank - 1)) {
      return BrokenRule{fmt::format("{} has more ranks than the host of rank 0, which has {}",
                                    name_of(place), count),
                        hint};
    }
    if (place.local_rank != rank - first) {
      return BrokenRule{
          fmt::format("rank {} has LOCAL_RANK={}, expected {}: the first rank of {} is "
                      "rank {}",
                      rank, place.local_rank, rank - first, name_of(place), first),
          hint};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<PlaceOfRank> meet_at_store(KeyValueStore& store, const LaunchEnvironment& environment,
                                       milliseconds within, bool shares_memory) {
  const int rank = environment.rank;
  // Each process increments a counter of its rank. A second process with the same rank finds more
  // than 1.
  if (store.add(fmt::format("joined/{}", rank), 1) > 1) {
    refuse_all(store, environment, fmt::format("two processes have RANK={}", rank),
               "give every process its own RANK, and every job its own MASTER_PORT");
  }
  const std::string host = host_name();
  // A launcher's node id identifies the host if there is one, because host names need not be
  // unique.
  const std::string& node = environment.node.empty() ? host : environment.node;
  store.set(who(rank), fmt::format("{}\n{}\n{}\n{}\n{}\n{:d}", environment.world_size, node, host,
                                   environment.local_rank, getpid(), shares_memory));
  const std::vector<std::string> keys = keys_of_all(environment.world_size);
  wait_for_all(store, environment, keys, within);
  std::vector<PlaceOfRank> places;
  for (const std::string& said : store.get(keys)) {
    std::vector<std::string> lines = parts_of(said, '\n', 6);
    const auto peer = static_cast<int>(places.size());
    if (number_in<int>(lines[0]) != environment.world_size) {
      refuse_all(store, environment,
                 fmt::format("WORLD_SIZE={} on rank {}, but WORLD_SIZE={} on rank {}",
                             environment.world_size, rank, lines[0], peer),
                 "start all ranks with the same WORLD_SIZE");
    }
    places.push_back({.node = std::move(lines[1]),
                      .host = std::move(lines[2]),
                      .local_rank = number_in<int>(lines[3]),
                      .pid = number_in<int>(lines[4]),
                      .shares_memory = number_in<int>(lines[5]) != 0});
  }
  // Checks once more for a refusal, because a late process with the rank of another process may
  // have refused the job meanwhile.
  hear_refusal(store, environment);
  return places;
}

Failure share_start_error(KeyValueStore& store, const LaunchEnvironment& environment,
                          const Error& error) {
  Failure failure{.rank = environment.rank,
                  .code = static_cast<ExitCode>(error.exit_code()),
                  .text = error.text()};
  try {
    failure = failure_of(store.set_once(kFailureKey, text_of(failure)));
    store.add(kLeft, 1);
    if (environment.rank > 0 || !environment.rank_0_serves_store()) return failure;
    // A rank that waits for ranks of its host may need some seconds to end.
    const auto until = Clock::now() + kHeardWithin;
    const std::vector<std::string> all = keys_of_all(environment.world_size);
    while (store.add(kLeft, 0) < std::ranges::count(store.have(all), true) &&
           Clock::now() < until) {
      std::this_thread::sleep_for(kStep);
    }
  } catch (const CommError&) {
    // The error of this rank is known, and says more than that the store is lost.
  }
  return failure;
}

RankRange ranks_of_host(KeyValueStore& store, const LaunchEnvironment& environment,
                        const std::vector<PlaceOfRank>& places) {
  if (const std::optional<BrokenRule> broken = broken_rule(places)) {
    refuse_all(store, environment, broken->what, broken->hint);
  }
  const PlaceOfRank& here = places[static_cast<size_t>(environment.rank)];
  const RankRange ranks{
      .begin = environment.rank - here.local_rank,
      .count = static_cast<int>(std::ranges::count_if(
          places, [&](const PlaceOfRank& place) { return is_same_host(place, here); }))};
  if (ranks.count != environment.local_world_size) {
    refuse_all(
        store, environment,
        fmt::format("rank {} has LOCAL_WORLD_SIZE={}, but the number of ranks on {} is {}",
                    environment.rank, environment.local_world_size, name_of(here), ranks.count),
        "set LOCAL_WORLD_SIZE to the number of ranks on each host");
  }
  return ranks;
}

}  // namespace fsdp
