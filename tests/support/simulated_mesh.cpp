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
  const auto pair = [&](int size) {
    return AxisCommunicators{.gather = make(axis(size)), .reduce = make(axis(size))};
  };
  const MeshShape shape{.replicate = replicas, .shard = world_size / replicas};
  return mesh_of(MeshParts{.control_plane = std::make_unique<SimulatedControlPlane>(0, world_size),
                           .topology = {.host = "simulated", .local_rank = 0},
                           .control = make({.size = world_size}),
                           .shape = shape,
                           .world = pair(world_size),
                           .shard = pair(shape.shard),
                           .replicate = pair(shape.replicate)});
}

}  // namespace fsdp::testing
