#include "support/simulated_mesh.h"

#include <memory>

#include "comm/mesh_state.h"
#include "comm/simulated/simulated_communicator.h"
#include "comm/simulated/simulated_control_plane.h"

namespace fsdp::testing {

Mesh simulated_mesh(int world_size, std::chrono::nanoseconds wire_time) {
  const auto make = [](SimulatedGroup group) {
    return std::make_unique<SimulatedCommunicator>(group);
  };
  const SimulatedGroup all{
      .size = world_size, .peers = SimulatedPeers::kAbsent, .wire_time = wire_time};
  return Mesh(std::make_shared<MeshState>(
      MeshParts{.control_plane = std::make_unique<SimulatedControlPlane>(0, world_size),
                .topology = {.host = "simulated", .local_rank = 0},
                .control = make({.size = world_size}),
                .replicate = {.gather = make({}), .reduce = make({})},
                .shard = {.gather = make(all), .reduce = make(all)}}));
}

}  // namespace fsdp::testing
