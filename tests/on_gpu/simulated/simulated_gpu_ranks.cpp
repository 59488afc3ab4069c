#include <cstdint>
#include <memory>

#include "on_gpu/support/gpu_ranks.h"
#include "simulator/torch/simulated_ranks.h"

namespace fsdp::testing {

RunRanksOptions ranks_on_gpu() {
  static uint32_t seed = 0;  // seed of the schedule
  return on_simulated_gpu(
      std::make_shared<SimulatedSession>(SimulatedRanksOptions{.simulation = {.seed = ++seed}}));
}

bool gpu_is_simulated() { return true; }

}  // namespace fsdp::testing
