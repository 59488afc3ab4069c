// Ranks of a test as threads on one simulated GPU: what it reports ends the test.
#pragma once

#include <vector>

#include "support/run_ranks.h"
#include "support/sim/torch/simulated_device.h"

namespace fsdp::testing {

struct SimulatedRanksOptions {
  sim::SimulationOptions simulation{};
  // LibTorch's stream of the rank is CUDA's default one; of one rank alone.
  bool default_stream = false;
};

// The GPU and the device of a test's ranks.
struct SimulatedSession {
  explicit SimulatedSession(const SimulatedRanksOptions& options)
      : gpu(options.simulation), device(gpu), default_stream(options.default_stream) {}
  sim::SimulatedGpu gpu;
  SimulatedDevice device;
  const bool default_stream;
};

// As Mesh::local. The session lives as long as the ranks' watches.
std::vector<WatchedRank> simulated_ranks(int world, const MeshOptions& options,
                                         const std::shared_ptr<SimulatedSession>& session);

}  // namespace fsdp::testing
