#include "nccl/support/nccl_ranks.h"

#include <numeric>

#include "comm/mesh_state.h"
#include "kernels/cuda/kernels.h"
#include "runtime/device.h"
#include "support/run_ranks.h"

namespace fsdp::testing {

NcclMachine::NcclMachine(int world, const NcclRanksOptions& options)
    : options_(options),
      gpu_({.seed = options.seed,
            .schedule = options.schedule,
            .devices = world,
            .one_process = options.one_process}),
      nccl_(gpu_, options.seed, options.most_questions) {
  for (int ordinal = 0; ordinal < world; ++ordinal) {
    devices_.push_back(std::make_unique<CudaDevice>(ordinal, kernels::cuda::kernel_table()));
  }
}

std::shared_ptr<NcclSession> NcclMachine::session(ControlPlane& plane) const {
  return std::make_shared<NcclSession>(
      NcclSession::Parts{.library = options_.library ? *options_.library : nccl_.library(),
                         .device = device(plane.rank()),
                         .plane = plane,
                         .timeout = options_.timeout,
                         .looks_every = options_.looks_every,
                         .on_stuck = options_.on_stuck});
}

std::vector<std::string> NcclMachine::left_at_end() {
  devices_.clear();
  return gpu_.left();
}

std::unique_ptr<Communicator> NcclRank::make(std::string_view name) const {
  std::vector<int> ranks(static_cast<size_t>(mesh.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_nccl_communicator(session, name, ranks);
}

void NcclRank::meet(std::string_view label) const {
  mesh.state().control_communicator().barrier({.label = label}, cpu_device().compute_stream());
}

void run_nccl_ranks(int world, NcclMachine& machine,
                    const std::function<void(const NcclRank& rank)>& body) {
  run_ranks(world, [&](const Mesh& mesh) {
    machine.device(mesh.rank()).make_current();
    body({.mesh = mesh,
          .device = machine.device(mesh.rank()),
          .session = machine.session(*mesh.state().parts().control_plane)});
  });
}

}  // namespace fsdp::testing
