#include "support/simulated_mesh.h"

#include <memory>

#include "comm/mesh_state.h"
#include "comm/simulated/simulated_communicator.h"
#include "comm/simulated/simulated_control_plane.h"

namespace fsdp::testing {

Mesh simulated_mesh(int world_size, std::chrono::nanoseconds wire_time, int replicas) {
  const auto make = [](SimulatedGroup group) {
    return std::make_unique<SimulatedCommunicator>(group);
  };
  const auto axis = [wire_time](int size) {
    return SimulatedGroup{.size = size, .peers = SimulatedPeers::kAbsent, .wire_time = wire_time};
  };
  const SimulatedGroup across = replicas == 1 ? SimulatedGroup{} : axis(replicas);
  const SimulatedGroup within = axis(world_size / replicas);
  return Mesh(std::make_shared<MeshState>(
      MeshParts{.control_plane = std::make_unique<SimulatedControlPlane>(0, world_size),
                .topology = {.host = "simulated", .local_rank = 0},
                .control = make({.size = world_size}),
                .replicate = {.gather = make(across), .reduce = make(across)},
                .shard = {.gather = make(within), .reduce = make(within)}}));
}

}  // namespace fsdp::testing
