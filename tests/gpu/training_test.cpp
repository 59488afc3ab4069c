// The engine on a simulated GPU: the CPU's bits, nothing out of order, and no host that waits.
#include "gpu/support/training.h"

#include <cstdlib>
#include <map>
#include <string>

using namespace fsdp::testing;

namespace {

int seeds_of_each() {
  const char* text = std::getenv("FSDP_SIM_SEEDS");
  return text == nullptr ? 20 : std::atoi(text);
}

void compare_with_cpu(SmallModel model) {
  uint32_t seed = 0;
  for (const Training& training : covering_trainings(model)) {
    const std::string what = describe(training);
    CAPTURE(what);
    const TrainingResult on_cpu = train_on_cpu(training);
    for (int i = 0; i < seeds_of_each(); ++i) {
      ++seed;
      CAPTURE(seed);
      const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
          .simulation = {.seed = seed}, .default_stream = training.world == 1 && seed % 2 == 0});
      const TrainingResult on_gpu = train_on_gpu(training, session);
      CHECK(difference(on_gpu, on_cpu) == "");
      CHECK(on_gpu.host_waits == 0);
    }
  }
}

}  // namespace

TEST_CASE("a GPT on a simulated GPU has the CPU's bits, whatever the schedule") {
  compare_with_cpu(SmallModel::kGpt);
}

TEST_CASE("a BERT on a simulated GPU has the CPU's bits, whatever the schedule") {
  compare_with_cpu(SmallModel::kBert);
}
