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

TEST_CASE("on two hosts of two GPUs a GPT has the CPU's bits, with every strategy") {
  uint32_t seed = 0;
  for (const fsdp::Strategy strategy : kAllStrategies) {
    // Groups are the hosts, as they are by themselves.
    const Training training{
        .world = 4, .groups = is_by_groups(strategy) ? 2 : 1, .options = {.strategy = strategy}};
    const std::string what = describe(training);
    CAPTURE(what);
    const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
        .simulation = {.seed = ++seed, .devices = 4}, .nccl = true, .hosts = 2});
    const TrainingResult on_hosts = train_on_gpu(training, session);
    CHECK(difference(on_hosts, train_on_cpu(training)) == "");
    CHECK(on_hosts.host_waits == 0);
  }
}
