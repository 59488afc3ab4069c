#include "comm/store/store_mesh.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "comm/store/open_job_store.h"
#include "comm/store/store_communicator.h"
#include "comm/store/store_text.h"
#include "fsdp/error.h"
#include "runtime/buffer.h"

namespace fsdp {
namespace {

// Returns a view of a segment whose only local rank is this process's rank.
ControlSegment view_of(const Buffer& memory, const LaunchEnvironment& environment) {
  return {memory.data(), environment.world_size, {environment.rank, 1}};
}

// Makes the segment of this process. All ranks are present in it.
Buffer make_segment(const std::vector<PlaceOfRank>& places, const LaunchEnvironment& environment) {
  Buffer memory =
      allocate_host(ControlSegment::bytes_for(environment.world_size, {environment.rank, 1}));
  const ControlSegment control = view_of(memory, environment);
  control.header().world_size = environment.world_size;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    RankStatus& status = control.status(rank);
    status.pid.store(places[static_cast<size_t>(rank)].pid);
    status.state.store(RankState::kPresent);
  }
  return memory;
}

// Joins the ranks of this host, which share memory.
HostRanks join_own_host(KeyValueStore& store, const LaunchEnvironment& environment,
                        const MeshOptions& options, const std::vector<PlaceOfRank>& places) {
  const RankRange local = ranks_of_host(store, environment, places);
  std::vector<int> pids;
  for (const PlaceOfRank& place : places) pids.push_back(place.pid);
  return join_host(environment, local, options.timeout, pids);
}

StoreRanks join(std::unique_ptr<KeyValueStore> store, const LaunchEnvironment& environment,
                const MeshOptions& options, HostMemory memory) {
  // The rendezvous uses the connection that the relay will own later.
  std::vector<PlaceOfRank> places =
      meet_at_store(*store, environment, options.timeout, memory == HostMemory::kShared);
  const PlaceOfRank own = places[static_cast<size_t>(environment.rank)];
  HostRanks host;
  std::shared_ptr<const Buffer> own_segment;
  if (std::ranges::all_of(places, &PlaceOfRank::shares_memory)) {
    host = join_own_host(*store, environment, options, places);
  } else {
    own_segment = std::make_shared<const Buffer>(make_segment(places, environment));
  }
  StoreJob job = join_over_store(
      {.rank = environment.rank,
       .places = places,
       .memory = own_segment ? std::shared_ptr<const void>(own_segment) : host.memory,
       .control = own_segment ? view_of(*own_segment, environment) : host.memory->control(),
       .store = std::move(store),  // on rank 0 it may also serve the store
       .timeout = options.timeout,
       .server = environment.rank_0_serves_store() ? std::optional(0) : std::nullopt},
      options);
  return {
      .parts = {.control_plane = std::move(job.plane),
                .topology = {.host = own.host,
                             .local_rank = own.local_rank,
                             .local_world_size = environment.local_world_size,
                             .one_host = false},
                .control = std::move(job.control),
                .shape = shape_of(options, environment.world_size, environment.local_world_size),
                .on_event = options.on_event},
      .member = job.member,
      .places = std::move(places),
      .host = std::move(host)};
}

}  // namespace

StoreJob join_over_store(StoreRelay::Parts parts, const MeshOptions& options) {
  const int rank = parts.rank;
  // Only one thread may use a connection, so the relay's thread and the control collectives have
  // one each.
  std::unique_ptr<KeyValueStore> of_control = parts.store->connect_again();
  const auto relay = std::make_shared<StoreRelay>(std::move(parts));
  // `memory` keeps the relay alive, so process_ended needs only the address of the relay.
  const auto member = std::make_shared<const JobMember>(
      JobMember::Parts{.memory = relay,
                       .control = relay->control(),
                       .rank = rank,
                       .kind = RankKind::kProcess,
                       .timeout = options.timeout,
                       .process_ended = [of = relay.get()](int peer) { return of->ended(peer); },
                       .on_slow_rank = slow_listener(options)});
  auto control = std::make_unique<StoreCommunicator>(
      member, group_of_all(*member, Channel::kControl), std::move(of_control),
      [relay](std::string_view cause) { return relay->failure_of_lost_store(cause); });
  auto plane = std::make_unique<StoreControlPlane>(member, relay, *control);
  return {
      .relay = relay, .member = member, .control = std::move(control), .plane = std::move(plane)};
}

StoreRanks mesh_over_store(std::unique_ptr<KeyValueStore> store,
                           const LaunchEnvironment& environment, const MeshOptions& options,
                           HostMemory memory) {
  std::unique_ptr<KeyValueStore> of_others = store->connect_again();
  try {
    StoreRanks joined = join(std::move(store), environment, options, memory);
    joined.store = std::move(of_others);
    return joined;
  } catch (const Error& error) {
    const Failure first = share_start_error(*of_others, environment, error);
    if (first.rank != environment.rank) throw_failure(first, {});
    throw;
  }
}

}  // namespace fsdp
