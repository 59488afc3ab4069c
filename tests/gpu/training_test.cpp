// Trains on a simulated GPU. The bits must be those of the CPU, all work must be ordered, and the
// host must not wait.
#include "gpu/support/training.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "simulator/torch/simulated_ranks.h"
#include "support/long_run.h"

using namespace fsdp::testing;

namespace {

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

void compare_with_cpu(const Training& training, const TrainingResult& on_cpu, uint32_t seed) {
  CAPTURE(seed);
  const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
      .simulation = {.seed = seed,
                     .bytes_each = training.model == SmallModel::kBertMini ? int64_t{2} << 30
                                                                           : int64_t{256} << 20},
      .default_stream = training.world == 1 && seed % 2 == 0});
  const TrainingResult on_gpu = train_on_gpu(training, session);
  CHECK(difference(on_gpu, on_cpu) == "");
  if (!training.options.cpu_offload) CHECK(on_gpu.host_waits == 0);  // else the host computes
}

void compare_pairs(SmallModel model) {
  uint32_t seed = 0;
  int number = 0;
  const int seeds = from_environment("FSDP_SIM_SEEDS", 20);
  for (const Training& training : covering_trainings(model)) {
    if (seeds == 1 && number++ % 3 != 0) continue;  // an ordinary run; tools/test sim takes all
    const std::string what = describe(training);
    CAPTURE(what);
    const TrainingResult on_cpu = train_on_cpu(training);
    for (int i = 0; i < seeds; ++i) {
      compare_with_cpu(training, on_cpu, ++seed);
    }
  }
}

}  // namespace

TEST_CASE("a GPT on a simulated GPU has the CPU's bits, whatever the schedule") {
  compare_pairs(SmallModel::kGpt);
}

TEST_CASE("a BERT on a simulated GPU has the CPU's bits, whatever the schedule") {
  compare_pairs(SmallModel::kBert);
}

// With CUDA_DEVICE_MAX_CONNECTIONS=1, a wait on one stream blocks later work on all streams.
TEST_CASE("with one hardware queue for all streams a training ends, with the CPU's bits") {
  uint32_t seed = 0;
  for (const bool nccl : {false, true}) {
    for (const int prefetch : {0, 1, 2}) {
      for (const fsdp::Strategy strategy :
           {fsdp::Strategy::kFullShard, fsdp::Strategy::kHybridShard}) {
        const bool in_groups = strategy == fsdp::Strategy::kHybridShard;
        const Training training{
            .world = in_groups ? 4 : 2,
            .groups = in_groups ? 2 : 1,
            .options = {
                .prefetch_units = prefetch, .cpu_offload = prefetch == 2, .strategy = strategy}};
        const std::string what = describe(training);
        CAPTURE(what);
        CAPTURE(nccl);
        const auto session = std::make_shared<SimulatedSession>(
            SimulatedRanksOptions{.simulation = {.seed = ++seed,
                                                 .schedule = sim::Schedule::kOneQueue,
                                                 .devices = nccl ? training.world : 1},
                                  .nccl = nccl});
        CHECK(difference(train_on_gpu(training, session), train_on_cpu(training)) == "");
      }
    }
  }
}

// Runs every combination with one seed after another, until FSDP_SIM_MINUTES are over.
TEST_CASE("ten steps in every combination have the CPU's bits" * doctest::skip(!is_long_run())) {
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::minutes(from_environment("FSDP_SIM_MINUTES", 4 * 60));
  std::vector<Training> trainings = all_trainings(SmallModel::kGpt);
  for (const Training& training : all_trainings(SmallModel::kBert)) trainings.push_back(training);
  const int seeds = from_environment("FSDP_SIM_SEEDS", 20);
  std::map<size_t, TrainingResult> on_cpu;
  size_t done = 0;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(seeds); ++seed) {
    for (size_t i = 0; i < trainings.size() && Clock::now() < end; ++i, ++done) {
      Training& training = trainings[i];
      training.steps = 10;
      const std::string what = describe(training);
      CAPTURE(what);
      if (seed == 1) on_cpu[i] = train_on_cpu(training);
      compare_with_cpu(training, on_cpu.at(i), seed);
    }
  }
  MESSAGE(fmt::format("{} of {} trainings of ten steps", done, trainings.size() * seeds));
}

TEST_CASE("BERT mini on two ranks has the CPU's bits" * doctest::skip(!is_long_run())) {
  for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
    const Training training{
        .model = SmallModel::kBertMini,
        .world = 2,
        .steps = 2,
        .options = {.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype}}};
    const std::string what = describe(training);
    CAPTURE(what);
    compare_with_cpu(training, train_on_cpu(training), 1);
  }
}
