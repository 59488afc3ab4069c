#include <atomic>
#include <cstdlib>
#include <memory>

#include "simulator/test_device.h"
#include "simulator/torch/simulated_ranks.h"

namespace fsdp::testing {
namespace {

uint32_t next_seed() {
  static std::atomic<uint32_t> drawn = 0;
  const char* text = std::getenv("FSDP_TEST_SEED");
  return text == nullptr ? ++drawn : static_cast<uint32_t>(std::atoi(text));
}

std::vector<WatchedRank> make(int world, const MeshOptions& options) {
  const uint32_t seed = next_seed();
  // For every second seed, a single rank uses LibTorch's default stream, as a user's program does.
  const SimulatedRanksOptions simulated{.simulation = {.seed = seed},
                                        .default_stream = world == 1 && seed % 2 == 0};
  auto session = std::make_shared<SimulatedSession>(simulated);
  session->left_behind.tell([](const auto&) {});  // tests may keep views of engine memory
  return simulated_ranks(world, options, session);
}

}  // namespace

MakeRanks simulated_ranks_of_environment() { return make; }

}  // namespace fsdp::testing
