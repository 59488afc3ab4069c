#include "benchmarks/gpu_probe/imagined_ranks.h"

#include <memory>
#include <utility>

#include "comm/mesh_state.h"
#include "comm/simulated/simulated_communicator.h"
#include "comm/simulated/simulated_control_plane.h"
#include "tests/support/forwarding_communicator.h"

namespace gpu_probe {
namespace {

// What it allocates is the device's.
class ImaginedCommunicator final : public fsdp::testing::ForwardingCommunicator {
 public:
  ImaginedCommunicator(std::unique_ptr<Communicator> inner, const fsdp::Device& device)
      : ForwardingCommunicator(std::move(inner)), device_(device) {}
  fsdp::Buffer allocate(int64_t bytes) override {
    return device_.allocate(bytes, fsdp::MemoryKind::kDevice);
  }

 private:
  const fsdp::Device& device_;
};

}  // namespace

fsdp::Mesh imagined_ranks(const fsdp::Mesh& alone, int count) {
  const fsdp::Device& device = alone.state().device();
  const auto simulated = [&](fsdp::SimulatedPeers peers) {
    return std::make_unique<fsdp::SimulatedCommunicator>(
        fsdp::SimulatedGroup{.size = count, .peers = peers});
  };
  const auto absent = [&] {
    return std::make_unique<ImaginedCommunicator>(simulated(fsdp::SimulatedPeers::kAbsent), device);
  };
  return fsdp::Mesh(std::make_shared<fsdp::MeshState>(
      fsdp::MeshParts{.device = &device,
                      .control_plane = std::make_unique<fsdp::SimulatedControlPlane>(0, count),
                      .topology = {.host = "imagined", .local_rank = 0},
                      .control = simulated(fsdp::SimulatedPeers::kAlike),
                      .shape = {.replicate = 1, .shard = count},
                      .world = {.gather = absent(), .reduce = absent()}}));
}

}  // namespace gpu_probe
