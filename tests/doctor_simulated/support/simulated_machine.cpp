#include "doctor_simulated/support/simulated_machine.h"

#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/nccl/nccl_mesh.h"
#include "doctor/support/machines.h"
#include "programs/doctor/loopback.h"
#include "runtime/cuda/cuda_library.h"

namespace fsdp::testing {

SimulatedMachine::SimulatedMachine(int gpus, uint32_t seed)
    : gpu_({.seed = seed, .devices = gpus}), nccl_(gpu_, seed) {}

std::vector<Mesh> SimulatedMachine::make_ranks(int world, const doctor::TellStuck& tell_stuck) {
  for (int ordinal = 0; ordinal < world; ++ordinal) {
    devices_.push_back(fsdp_cuda_library()->open_device(ordinal));
  }
  std::vector<MeshParts> parts =
      local_mesh(world, {.timeout = wait_}, world == 1 ? devices_.front().get() : nullptr);
  if (world > 1) {
    std::vector<std::shared_ptr<NcclSession>> sessions;
    for (int rank = 0; rank < world; ++rank) {
      const auto at = static_cast<size_t>(rank);
      sessions.push_back(std::make_shared<NcclSession>(
          NcclSession::Parts{.library = nccl_.library(),
                             .device = *devices_[at],
                             .plane = *parts[at].control_plane,
                             .timeout = wait_,
                             .first_use = 1,
                             .looks_every = std::chrono::milliseconds(1),
                             .on_stuck = [tell_stuck](const Failure& failure) {
                               tell_stuck(CommError(failure.text, failure.code));
                             }}));
    }
    connect_by_nccl(parts, sessions);
  }
  if (on_ranks_) on_ranks_();
  std::vector<Mesh> ranks;
  for (MeshParts& each : parts) ranks.push_back(mesh_of(std::move(each)));
  return ranks;
}

doctor::Facts SimulatedMachine::examine(const doctor::TimeLimits& limits) {
  const doctor::GpuSource source{
      .devices =
          [] {
            CudaDevices devices;
            devices.count = fsdp_cuda_library()->device_count(devices.why_none);
            return devices;
          },
      .library = []() -> const CudaLibrary& { return *fsdp_cuda_library(); },
      .nccl = [this]() -> const nccl::Library& { return nccl_.library(); },
      .loop_back =
          [this](int world, const doctor::TellStuck& tell_stuck) {
            doctor::run_loopback(make_ranks(world, tell_stuck));
          }};
  doctor::Facts facts = sound_machine(0);
  gather_gpus(facts, source, limits);
  if (!is_stuck(facts)) devices_.clear();
  return facts;
}

void SimulatedMachine::let_go(const doctor::Facts& facts) {
  nccl_.let_go();
  facts.loopback.end.ended.wait();
  devices_.clear();
}

}  // namespace fsdp::testing
