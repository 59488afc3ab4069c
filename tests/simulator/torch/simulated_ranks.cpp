#include "simulator/torch/simulated_ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/nccl/nccl_mesh.h"
#include "comm/store/store_mesh.h"
#include "simulator/torch/torch_memory.h"
#include "simulator/torch/torch_operators.h"
#include "support/run_torch_ranks.h"
#include "support/store_ranks.h"
#include "support/torch_doctest.h"
#include "support/wire/wire_ranks.h"

namespace fsdp::testing {
namespace {

class SimulatedWatch final : public RankWatch {
 public:
  SimulatedWatch(std::shared_ptr<SimulatedSession> session, int rank)
      : session_(std::move(session)), rank_(rank) {}

  void begin() override {
    SimulatedDevice& device = session_->device_of(rank_);
    device.make_current();
    stream_.emplace(device, fmt::format("rank {}", rank_), session_->default_stream);
    memory_.emplace();
    operators_.emplace();
  }
  // If a rank threw, the other ranks' work was interrupted. Then reports are printed and do not
  // fail the test.
  void end(bool threw) override {
    operators_.reset();
    cudaStreamSynchronize(stream_->handle());  // ends the work on LibTorch's memory
    memory_.reset();
    stream_.reset();
    if (session_->keeps_reports) return;
    std::string text;
    for (const std::string& each : session_->gpu.take_reports()) text += each + "\n";
    if (text.empty()) return;
    if (!threw) throw std::runtime_error("the simulated GPU reports: " + text);
    std::fprintf(stderr, "the simulated GPU reports: %s", text.c_str());
  }

 private:
  const std::shared_ptr<SimulatedSession> session_;
  const int rank_;
  std::optional<ComputeStreamOfThread> stream_;
  std::optional<TorchMemoryOfThread> memory_;
  std::optional<TorchOperatorsOfThread> operators_;
};

}  // namespace

namespace {

sim::SimulationOptions with_spare(sim::SimulationOptions options) {
  options.spare_default = true;
  return options;
}

}  // namespace

SimulatedSession::SimulatedSession(const SimulatedRanksOptions& options)
    : gpu(with_spare(options.simulation)),
      left_behind(gpu),
      device(gpu),
      default_stream(options.default_stream),
      keeps_reports(options.keeps_reports),
      hosts(options.hosts),
      wire(options.wire) {
  if (!options.nccl) return;
  for (int ordinal = 1; ordinal < options.simulation.devices; ++ordinal) {
    others.push_back(std::make_unique<SimulatedDevice>(gpu, ordinal));
  }
  nccl = std::make_unique<sim::SimulatedNccl>(gpu, options.simulation.seed);
}

LeftBehind::~LeftBehind() {
  const bool is_lost = cudaDeviceSynchronize() != cudaSuccess;  // a lost device cannot free
  std::vector<std::string> left;
  if (!is_lost) left = gpu_.left();
  if (hears_) {
    hears_(std::move(left));
    return;
  }
  for (const std::string& each : left) FAIL_CHECK("left on the simulated GPU: " << each);
}

namespace {

void connect(std::vector<MeshParts>& meshes, const MeshOptions& options,
             SimulatedSession& session) {
  std::vector<std::shared_ptr<NcclSession>> sessions;
  for (const MeshParts& parts : meshes) {
    sessions.push_back(std::make_shared<NcclSession>(
        NcclSession::Parts{.library = session.nccl->library(),
                           .device = session.device_of(parts.control_plane->rank()),
                           .plane = *parts.control_plane,
                           .timeout = options.timeout,
                           .first_use = 1,
                           .looks_every = std::chrono::milliseconds(2),
                           // Aborts the process, because a stuck rank would block the test program
                           // for ever.
                           .on_stuck = [](const Failure&) { std::abort(); }}));
  }
  connect_by_nccl(meshes, sessions);
}

// Each rank connects in its own thread, as processes do, because mesh_over_store waits for all
// ranks.
std::vector<MeshParts> meshes_on_hosts(int world, int hosts, const MeshOptions& options) {
  MemoryStore store;
  std::vector<MeshParts> meshes(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      meshes[static_cast<size_t>(rank)] =
          mesh_over_store(store.connect(rank), rank_on_hosts(rank, world, hosts), options).parts;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return meshes;
}

}  // namespace

std::vector<WatchedRank> simulated_ranks(int world, const MeshOptions& options,
                                         const std::shared_ptr<SimulatedSession>& session) {
  const bool by_nccl = session->nccl != nullptr && world > 1;
  std::vector<MeshParts> meshes =
      session->hosts > 1 ? meshes_on_hosts(world, session->hosts, options)
                         : local_mesh(world, options, by_nccl ? nullptr : &session->device);
  if (by_nccl) connect(meshes, options, *session);
  if (!by_nccl) put_on_wire(meshes, session->wire);
  std::vector<WatchedRank> ranks;
  for (MeshParts& parts : meshes) {
    const int rank = parts.control_plane->rank();
    ranks.push_back({std::make_shared<SimulatedWatch>(session, rank), mesh_of(std::move(parts))});
  }
  return ranks;
}

RunRanksOptions on_simulated_gpu(const std::shared_ptr<SimulatedSession>& session) {
  RunRanksOptions options = torch_ranks_options();
  options.make = [session](int world, const MeshOptions& mesh) {
    return simulated_ranks(world, mesh, session);
  };
  return options;
}

}  // namespace fsdp::testing
