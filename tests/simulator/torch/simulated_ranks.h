// Makes ranks of a test as threads. They share one simulated GPU, or each has its own GPU with NCCL
// between them. A report of a GPU fails the test.
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
  // LibTorch's stream of the rank is CUDA's default stream. Allowed only for a single rank.
  bool default_stream = false;
  // The GPU keeps its reports for the test. Otherwise they are thrown when a rank ends, or printed.
  bool keeps_reports = false;
  // Each rank has its own GPU, one of simulation.devices, and NCCL connects the ranks.
  bool nccl = false;
  // With NCCL: the number of hosts. Hosts share only a store.
  int hosts = 1;
  Wire wire{};  // the link between ranks that share the GPU
};

// A check that is destroyed after the users of a GPU and before the GPU. Objects that still exist
// on the GPU then fail the test. If a function was passed to `tell`, it is called instead.
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

// The GPUs of a test's ranks. Members are destroyed in reverse order: first NCCL and the devices.
// Then left_behind checks the GPU, and the GPU is destroyed last.
struct SimulatedSession {
  explicit SimulatedSession(const SimulatedRanksOptions& options);
  sim::SimulatedGpu gpu;
  LeftBehind left_behind;
  SimulatedDevice device;
  const bool default_stream, keeps_reports;
  const int hosts;
  const Wire wire;
  std::vector<std::unique_ptr<SimulatedDevice>> others;  // with NCCL: the devices of ranks 1, 2, …
  std::unique_ptr<sim::SimulatedNccl> nccl;              // null: all ranks share `device`

  SimulatedDevice& device_of(int rank) {
    return nccl == nullptr || rank == 0 ? device : *others[static_cast<size_t>(rank) - 1];
  }
};

// Returns ranks as Mesh::local does. The watches of the ranks keep the session alive.
std::vector<WatchedRank> simulated_ranks(int world, const MeshOptions& options,
                                         const std::shared_ptr<SimulatedSession>& session);

// Returns options for run_ranks: those of torch_ranks_options, with ranks on the session's GPU.
RunRanksOptions on_simulated_gpu(const std::shared_ptr<SimulatedSession>& session);

}  // namespace fsdp::testing
