// A machine with simulated GPUs and a simulated NCCL for fsdp-doctor to examine. The library's own
// classes run on it.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "programs/doctor/doctor.h"
#include "runtime/device.h"
#include "simulator/cuda/simulated_gpu.h"
#include "simulator/cuda/simulated_nccl.h"

namespace fsdp::testing {

class SimulatedMachine {
 public:
  explicit SimulatedMachine(int gpus, uint32_t seed = 1);

  sim::SimulatedGpu& gpu() { return gpu_; }
  sim::SimulatedNccl& nccl() { return nccl_; }
  // Sets a function that is called when the ranks of the loopback test have connected.
  void on_ranks(std::function<void()> call) { on_ranks_ = std::move(call); }
  // Sets the time that ranks wait for each other.
  void wait_at_most(std::chrono::milliseconds wait) { wait_ = wait; }

  // Returns the facts that the program would collect on a sound host. Afterwards it destroys the
  // ranks' devices, unless a thread is stuck.
  doctor::Facts examine(const doctor::TimeLimits& limits = {});
  // Releases a call that hangs, and waits for the threads that were in that call.
  void let_go(const doctor::Facts& facts);

 private:
  std::vector<Mesh> make_ranks(int world, const doctor::TellStuck& tell_stuck);

  sim::SimulatedGpu gpu_;
  sim::SimulatedNccl nccl_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::function<void()> on_ranks_;
  std::chrono::milliseconds wait_{30'000};
};

}  // namespace fsdp::testing
