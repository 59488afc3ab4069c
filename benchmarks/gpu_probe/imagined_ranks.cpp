#include "benchmarks/gpu_probe/imagined_ranks.h"

#include <memory>
#include <utility>

#include "comm/mesh_state.h"
#include "comm/simulated/simulated_communicator.h"
#include "comm/simulated/simulated_control_plane.h"

namespace gpu_probe {

fsdp::Mesh imagined_ranks(const fsdp::Mesh& alone, int count) {
  const fsdp::Device& device = state_of(alone).device();
  const auto simulated = [&](fsdp::SimulatedGroup group) {
    group.size = count;
    return std::make_unique<fsdp::SimulatedCommunicator>(group);
  };
  const auto absent = [&] {
    return simulated({.peers = fsdp::SimulatedPeers::kAbsent, .device = &device});
  };
  return fsdp::mesh_of(
      fsdp::MeshParts{.device = &device,
                      .control_plane = std::make_unique<fsdp::SimulatedControlPlane>(0, count),
                      .topology = {.host = "imagined", .local_rank = 0},
                      .control = simulated({}),
                      .shape = {.replicate = 1, .shard = count},
                      .world = {.gather = absent(), .reduce = absent()}});
}

}  // namespace gpu_probe
