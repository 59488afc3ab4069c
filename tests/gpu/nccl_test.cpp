// The engine on simulated GPUs, one a rank, with NCCL between them: the CPU's bits, nothing out of
// order, and no host that waits.
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "gpu/support/training.h"

using namespace fsdp::testing;

namespace {

int seeds() {
  const char* text = std::getenv("FSDP_SIM_SEEDS");
  return text == nullptr ? 20 : std::atoi(text);
}

void compare_pairs(SmallModel model) {
  uint32_t seed = 0;
  for (const Training& training : covering_trainings(model)) {
    if (training.world == 1) continue;  // without NCCL
    const std::string what = describe(training);
    CAPTURE(what);
    // A mean of powers of two has the same bits whether it is formed before or after the sum.
    const TrainingResult on_cpu = train_on_cpu(training, /*sums=*/training.world == 3);
    for (int i = 0; i < seeds(); ++i) {
      ++seed;
      CAPTURE(seed);
      const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
          .simulation = {.seed = seed, .devices = training.world}, .nccl = true});
      const TrainingResult by_nccl = train_on_gpu(training, session);
      CHECK(difference(by_nccl, on_cpu) == "");
      if (!training.options.cpu_offload) CHECK(by_nccl.host_waits == 0);  // else it computes, too
    }
  }
}

}  // namespace

TEST_CASE("a GPT by NCCL has the CPU's bits, whatever the schedule") {
  compare_pairs(SmallModel::kGpt);
}

TEST_CASE("a BERT by NCCL has the CPU's bits, whatever the schedule") {
  compare_pairs(SmallModel::kBert);
}
