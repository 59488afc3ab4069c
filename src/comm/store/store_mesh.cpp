#include "comm/store/store_mesh.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "comm/store/store_communicator.h"
#include "comm/store/store_control_plane.h"

namespace fsdp {
namespace {

StoreAddress address_of(const LaunchEnvironment& environment) {
  const auto refuse = [&](const char* name) {
    throw InvalidArgument(
        {.what = fmt::format("{} is not set, but the ranks are on several hosts "
                             "(LOCAL_WORLD_SIZE={}, WORLD_SIZE={})",
                             name, environment.local_world_size, environment.world_size),
         .where = "environment",
         .hint = "set MASTER_ADDR and MASTER_PORT to rank 0's address (torchrun sets them, mpirun "
                 "-x passes them on)"});
  };
  if (environment.master_addr.empty()) refuse("MASTER_ADDR");
  if (!environment.master_port) refuse("MASTER_PORT");
  return {.host = environment.master_addr,
          .port = *environment.master_port,
          .is_server = environment.rank == 0 && !environment.has_agent_store,
          // An agent's store survives a restart. The prefix ensures that the new job does not read
          // keys of the old job.
          .prefix = fmt::format("fsdp/{}/", environment.restart_count)};
}

}  // namespace

StoreRanks store_mesh(const LaunchEnvironment& environment, const MeshOptions& options,
                      OpenStore open) {
  const StoreAddress address = address_of(environment);
  // Only the engine links a store (that of LibTorch). In a program without an engine, `open` is
  // null.
  if (open == nullptr) {
    throw InvalidArgument(
        {.what = "ranks of several hosts cannot join: the program does not link LibTorch's store",
         .where = "Mesh::from_env",
         .cause = "ranks of several hosts rendezvous through LibTorch's store, which is linked "
                  "with the engine",
         .hint = "link the CMake target fsdp::fsdp; the linker includes the store only if the "
                 "program's "
                 "code uses fsdp::Engine, also after this call"});
  }
  return mesh_over_store(open(address, options.timeout), environment, options);
}

StoreRanks mesh_over_store(std::unique_ptr<KeyValueStore> store,
                           const LaunchEnvironment& environment, const MeshOptions& options) {
  // The rendezvous uses the connection that the relay will own later.
  std::vector<PlaceOfRank> places = meet_at_store(*store, environment, options.timeout);
  const PlaceOfRank own = places[static_cast<size_t>(environment.rank)];
  // Only one thread may use a connection, so the relay's thread and the control collectives have
  // one each.
  std::unique_ptr<KeyValueStore> of_control = store->connect_again();
  std::unique_ptr<KeyValueStore> of_others = store->connect_again();
  const auto relay = std::make_shared<StoreRelay>(
      StoreRelay::Parts{.rank = environment.rank,
                        .places = places,
                        .store = std::move(store),  // on rank 0 it may also serve the store
                        .timeout = options.timeout,
                        .server = environment.has_agent_store ? std::nullopt : std::optional(0)});
  // `memory` keeps the relay alive, so process_ended needs only the address of the relay.
  const auto member = std::make_shared<const JobMember>(
      JobMember::Parts{.memory = relay,
                       .control = relay->control(),
                       .rank = environment.rank,
                       .kind = RankKind::kProcess,
                       .timeout = options.timeout,
                       .process_ended = [of = relay.get()](int peer) { return of->ended(peer); },
                       .on_slow_rank = slow_listener(options)});
  auto control = std::make_unique<StoreCommunicator>(
      member, group_of_all(*member, Channel::kControl), std::move(of_control),
      [relay](std::string_view cause) { return relay->failure_of_lost_store(cause); });
  auto plane = std::make_unique<StoreControlPlane>(member, relay, *control);
  return {
      .parts = {.control_plane = std::move(plane),
                .topology = {.host = own.host,
                             .local_rank = own.local_rank,
                             .local_world_size = environment.local_world_size,
                             .one_host = false},
                .control = std::move(control),
                .shape = shape_of(options, environment.world_size, environment.local_world_size),
                .on_event = options.on_event},
      .member = member,
      .places = std::move(places),
      .store = std::move(of_others)};
}

}  // namespace fsdp
