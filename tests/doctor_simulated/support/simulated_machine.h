// A machine with simulated GPUs and a simulated NCCL, as fsdp-doctor finds it: beneath it are the
// library's own classes.
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
  // Called when the ranks of the loopback have met.
  void on_ranks(std::function<void()> call) { on_ranks_ = std::move(call); }
  // How long ranks wait for each other.
  void wait_at_most(std::chrono::milliseconds wait) { wait_ = wait; }

  // What the program would know, and say, with a host that is sound. The devices that ranks had are
  // gone then, unless a thread is stuck.
  doctor::Facts examine(const doctor::TimeLimits& limits = {});
  // Lets a call go that hangs, and waits for the threads that were in it.
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
