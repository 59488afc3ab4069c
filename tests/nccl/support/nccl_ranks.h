// Ranks of a test as threads, each on a simulated GPU of its own, with NCCL between them.
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
  int first_use = 1;                         // time-outs
  std::chrono::milliseconds looks_every{1};  // the watchdog
  std::function<void(const Failure& failure)> on_stuck{};
  const nccl::Library* library = nullptr;  // null: the simulated one as it is
  bool one_process = false;                // SimulationOptions::one_process
  sim::HostCosts host_costs{};
};

// The GPUs of a test, and NCCL.
class NcclMachine {
 public:
  explicit NcclMachine(int world, const NcclRanksOptions& options = {});

  sim::SimulatedGpu& gpu() { return gpu_; }
  sim::SimulatedNccl& nccl() { return nccl_; }
  const CudaDevice& device(int rank) const { return *devices_[static_cast<size_t>(rank)]; }
  // Of the rank whose control plane it is.
  std::shared_ptr<NcclSession> session(ControlPlane& plane) const;
  const NcclRanksOptions& options() const { return options_; }
  // The devices go. What is on the GPUs still, that somebody made.
  std::vector<std::string> left_at_end();

 private:
  const NcclRanksOptions options_;
  sim::SimulatedGpu gpu_;
  sim::SimulatedNccl nccl_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
};

// One rank, in its thread.
struct NcclRank {
  const Mesh& mesh;
  const CudaDevice& device;
  std::shared_ptr<NcclSession> session;
  // Over all ranks.
  std::unique_ptr<Communicator> make(std::string_view name) const;
  // All ranks come here. It has no place in the host order: tests give those by hand.
  void meet(std::string_view label) const;
};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Whether the GPUs have reported something with these words. Takes all reports, and shows them.
bool objects(NcclMachine& machine, std::string_view with);

// Runs body(rank) in a thread of each rank; throws what one threw.
void run_nccl_ranks(int world, NcclMachine& machine,
                    const std::function<void(const NcclRank& rank)>& body);

// Runs body(mesh) in a thread of each rank, whose mesh computes on the machine's GPUs. The mesh
// ends with the body, as a program's would, also where that throws. Returns what each rank threw;
// "": nothing.
std::vector<std::string> run_on_gpus(int world, NcclMachine& machine,
                                     const std::function<void(const Mesh& mesh)>& body);

}  // namespace fsdp::testing
