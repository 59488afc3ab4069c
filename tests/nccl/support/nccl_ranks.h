// Runs the ranks of a test as threads. Each has its own simulated GPU, and NCCL connects them.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nccl/nccl_communicator.h"
#include "runtime/cuda/cuda_device.h"
#include "simulator/cuda/simulated_gpu.h"
#include "simulator/cuda/simulated_nccl.h"

namespace fsdp::testing {

struct NcclRanksOptions {
  uint32_t seed = 1;
  sim::Schedule schedule = sim::Schedule::kRandom;
  int most_questions = 3;
  std::chrono::milliseconds timeout{30'000};
  int first_use = 1;                         // as a multiple of the timeout
  std::chrono::milliseconds looks_every{1};  // the watchdog's period
  std::function<void(const Failure& failure)> on_stuck{};
  const nccl::Library* library = nullptr;  // null: the simulated library, unchanged
  bool one_process = false;                // SimulationOptions::one_process
  sim::HostCosts host_costs{};
};

// The GPUs and the NCCL of a test.
class NcclMachine {
 public:
  explicit NcclMachine(int world, const NcclRanksOptions& options = {});

  sim::SimulatedGpu& gpu() { return gpu_; }
  sim::SimulatedNccl& nccl() { return nccl_; }
  const CudaDevice& device(int rank) const { return *devices_[static_cast<size_t>(rank)]; }
  // Returns a session for the rank that owns the control plane.
  std::shared_ptr<NcclSession> session(ControlPlane& plane) const;
  const NcclRanksOptions& options() const { return options_; }
  // Destroys the devices. Returns the objects that still existed on the GPUs.
  std::vector<std::string> left_at_end();

 private:
  const NcclRanksOptions options_;
  sim::SimulatedGpu gpu_;
  sim::SimulatedNccl nccl_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
};

// The objects of one rank, used in the rank's thread.
struct NcclRank {
  const Mesh& mesh;
  const CudaDevice& device;
  std::shared_ptr<NcclSession> session;
  // Makes a communicator over all ranks.
  std::unique_ptr<Communicator> make(std::string_view name) const;
  // Waits for all ranks. This barrier has no number in the collective sequence, because tests
  // number collectives themselves.
  void meet(std::string_view label) const;
};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Returns true if a report of the GPUs contains `with`. Removes all reports, and prints them.
bool objects(NcclMachine& machine, std::string_view with);

// Runs body(rank) in a thread for each rank. Rethrows a rank's error.
void run_nccl_ranks(int world, NcclMachine& machine,
                    const std::function<void(const NcclRank& rank)>& body);

// Runs body(mesh) in a thread for each rank, with meshes on the machine's GPUs. The mesh is
// destroyed together with the body, as in a program, also if the body throws. Returns the error
// text of each rank. The text is empty if the rank did not throw.
std::vector<std::string> run_on_gpus(int world, NcclMachine& machine,
                                     const std::function<void(const Mesh& mesh)>& body);

}  // namespace fsdp::testing
