// Ranks of a test as threads on one simulated GPU, or on one each with NCCL between them: what it
// reports ends the test.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "simulator/cuda/simulated_nccl.h"
#include "simulator/torch/simulated_device.h"
#include "support/run_ranks.h"
#include "support/wire/wire_time.h"

namespace fsdp::testing {

struct SimulatedRanksOptions {
  sim::SimulationOptions simulation{};
  // LibTorch's stream of the rank is CUDA's default one; of one rank alone.
  bool default_stream = false;
  // What the GPU reports stays with it; else it is thrown where a rank ends, or printed.
  bool keeps_reports = false;
  // Each rank has a GPU of its own, of simulation.devices, and reaches the others by NCCL.
  bool nccl = false;
  // With NCCL: the ranks are on so many hosts, and have nothing in common but a store.
  int hosts = 1;
  Wire wire{};  // of ranks that share the GPU
};

// Between a GPU and who uses it: what the user has left behind when it goes fails the test, unless
// somebody asks for it.
class LeftBehind {
 public:
  explicit LeftBehind(const sim::SimulatedGpu& gpu) : gpu_(gpu) {}
  ~LeftBehind();
  LeftBehind(const LeftBehind&) = delete;
  LeftBehind& operator=(const LeftBehind&) = delete;

  void tell(std::function<void(std::vector<std::string> left)> hears) { hears_ = std::move(hears); }

 private:
  const sim::SimulatedGpu& gpu_;
  std::function<void(std::vector<std::string> left)> hears_;
};

// The GPUs of a test's ranks.
struct SimulatedSession {
  explicit SimulatedSession(const SimulatedRanksOptions& options);
  sim::SimulatedGpu gpu;
  LeftBehind left_behind;
  SimulatedDevice device;
  const bool default_stream, keeps_reports;
  const int hosts;
  const Wire wire;
  std::vector<std::unique_ptr<SimulatedDevice>> others;  // with NCCL: of ranks 1, 2, …
  std::unique_ptr<sim::SimulatedNccl> nccl;              // null: all ranks share `device`

  SimulatedDevice& device_of(int rank) {
    return nccl == nullptr || rank == 0 ? device : *others[static_cast<size_t>(rank) - 1];
  }
};

// As Mesh::local. The session lives as long as the ranks' watches.
std::vector<WatchedRank> simulated_ranks(int world, const MeshOptions& options,
                                         const std::shared_ptr<SimulatedSession>& session);

// For run_ranks: torch_ranks_options, on the session's GPU.
RunRanksOptions on_simulated_gpu(const std::shared_ptr<SimulatedSession>& session);

}  // namespace fsdp::testing
