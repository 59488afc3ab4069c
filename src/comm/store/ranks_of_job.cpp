#include "comm/store/ranks_of_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "comm/mesh_parts.h"
#include "comm/store/store_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kStep = milliseconds(100);
// Who serves the store stays so long: until all have looked.
constexpr auto kHeardWithin = 5 * kStep;

std::string who(int rank) { return fmt::format("who/{}", rank); }

// The first refusal, or failure, is everybody's.
[[noreturn]] void refuse_all(KeyValueStore& store, const LaunchEnvironment& environment,
                             std::string what, std::string hint) {
  const Failure refusal{
      .rank = environment.rank,
      .code = ExitCode::kConfiguration,
      .text = {.what = std::move(what), .where = "start of the job", .hint = std::move(hint)}};
  const Failure first = failure_of(store.set_once(kFailureKey, text_of(refusal)));
  const bool serves = environment.rank == 0 && !environment.has_agent_store;
  if (serves) std::this_thread::sleep_for(kHeardWithin);
  throw_failure(first, {});
}

void hear_refusal(KeyValueStore& store, const LaunchEnvironment& environment) {
  if (store.has(kFailureKey)) refuse_all(store, environment, {}, {});
}

void wait_for_all(KeyValueStore& store, const LaunchEnvironment& environment,
                  const std::vector<std::string>& keys, milliseconds within) {
  const auto deadline = Clock::now() + within;
  while (!store.wait(keys, kStep)) {
    hear_refusal(store, environment);
    if (Clock::now() < deadline) continue;
    for (int rank = 0; rank < environment.world_size; ++rank) {
      if (store.has(keys[static_cast<size_t>(rank)])) continue;
      refuse_all(store, environment,
                 fmt::format("rank {} of {} did not arrive within {:.1f} s", rank,
                             environment.world_size, std::chrono::duration<double>(within).count()),
                 "make the mesh first thing in the program, before long work, and start as many "
                 "ranks as WORLD_SIZE says");
    }
  }
}

}  // namespace

std::vector<PlaceOfRank> meet_at_store(KeyValueStore& store, const LaunchEnvironment& environment,
                                       milliseconds within) {
  const int rank = environment.rank;
  if (store.add(fmt::format("joined/{}", rank), 1) > 1) {
    refuse_all(store, environment, fmt::format("two processes have RANK={}", rank),
               "give every process a RANK of its own, and every job a MASTER_PORT of its own");
  }
  const std::string host = host_name();
  const std::string& node = environment.node.empty() ? host : environment.node;
  store.set(who(rank), fmt::format("{}\n{}\n{}\n{}\n{}", environment.world_size, node, host,
                                   environment.local_rank, getpid()));
  std::vector<std::string> keys;
  for (int peer = 0; peer < environment.world_size; ++peer) keys.push_back(who(peer));
  wait_for_all(store, environment, keys, within);
  std::vector<PlaceOfRank> places;
  for (const std::string& said : store.get(keys)) {
    std::vector<std::string> lines = parts_of(said, '\n', 5);
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
                      .pid = number_in<int>(lines[4])});
  }
  // One that came too late, with the rank of another, is heard of here.
  hear_refusal(store, environment);
  return places;
}

}  // namespace fsdp
