#include "nccl/support/nccl_ranks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/nccl/nccl_mesh.h"
#include "kernels/cuda/kernels.h"
#include "runtime/device.h"
#include "support/run_ranks.h"

namespace fsdp::testing {

NcclMachine::NcclMachine(int world, const NcclRanksOptions& options)
    : options_(options),
      gpu_({.seed = options.seed,
            .schedule = options.schedule,
            .devices = world,
            .one_process = options.one_process,
            .spare_default = true,
            .host_costs = options.host_costs}),
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
                         .first_use = options_.first_use,
                         .looks_every = options_.looks_every,
                         .on_stuck = options_.on_stuck});
}

std::vector<std::string> NcclMachine::left_at_end() {
  devices_.clear();
  return gpu_.left();
}

bool objects(NcclMachine& machine, std::string_view with) {
  const std::vector<std::string> reports = machine.gpu().take_reports();
  for (const std::string& report : reports) MESSAGE(report);
  return std::ranges::any_of(
      reports, [&](const std::string& report) { return report.find(with) != std::string::npos; });
}

std::unique_ptr<Communicator> NcclRank::make(std::string_view name) const {
  std::vector<int> ranks(static_cast<size_t>(mesh.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_nccl_communicator(session, name, ranks);
}

void NcclRank::meet(std::string_view label) const {
  state_of(mesh).control_communicator().barrier({.label = label}, cpu_device().compute_stream());
}

void run_nccl_ranks(int world, NcclMachine& machine,
                    const std::function<void(const NcclRank& rank)>& body) {
  run_ranks(world, [&](const Mesh& mesh) {
    machine.device(mesh.rank()).make_current();
    body({.mesh = mesh,
          .device = machine.device(mesh.rank()),
          .session = machine.session(*state_of(mesh).parts().control_plane)});
  });
}

std::vector<std::string> run_on_gpus(int world, NcclMachine& machine,
                                     const std::function<void(const Mesh& mesh)>& body) {
  std::vector<MeshParts> parts = local_mesh(world, {.timeout = machine.options().timeout});
  std::vector<std::shared_ptr<NcclSession>> sessions;
  for (const MeshParts& each : parts) sessions.push_back(machine.session(*each.control_plane));
  connect_by_nccl(parts, sessions);
  // From here on only the meshes own the sessions. So each session is destroyed in the thread of
  // its rank.
  sessions.clear();
  std::vector<std::string> told(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank, own = std::move(parts[static_cast<size_t>(rank)])]() mutable {
      machine.device(rank).make_current();
      try {
        const Mesh mesh = mesh_of(std::move(own));
        body(mesh);
      } catch (const Error& error) {
        told[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

}  // namespace fsdp::testing
