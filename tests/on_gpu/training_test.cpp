// Trains small models on thread ranks of one GPU. If a model's bits do not depend on the device,
// they must be the CPU's bits. Otherwise its losses must be near the CPU's. The bits must be the
// same each time.
#include "gpu/support/training.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "on_gpu/support/gpu_ranks.h"

using namespace fsdp::testing;

namespace {

TrainingResult train_on_this_gpu(const Training& training) {
  return train_on(training, ranks_on_gpu(), [] { return 0; });
}

// Returns the trainings to run. On a simulated GPU these are only a few, because it is some hundred
// times slower.
std::vector<Training> tried(const std::vector<Training>& trainings) {
  if (!gpu_is_simulated()) return trainings;
  std::vector<Training> few;
  for (size_t i = 0; i < trainings.size(); i += 12) few.push_back(trainings[i]);
  return few;
}

// Returns the distance that the third loss may have. The order of sums in LibTorch's matrix
// products depends on the device, and AdamW turns a gradient near zero into a whole step.
double tolerance_of(const Training& training) {
  return training.options.mixed_precision.reduce_dtype == torch::kBFloat16 ? 5e-2 : 2e-3;
}

void compare_losses(SmallModel model) {
  for (const Training& training : tried(covering_trainings(model))) {
    const std::string what = describe(training);
    CAPTURE(what);
    const TrainingResult on_gpu = train_on_this_gpu(training), on_cpu = train_on_cpu(training);
    REQUIRE(on_gpu.losses.size() == on_cpu.losses.size());
    for (size_t i = 0; i < on_cpu.losses.size(); ++i) {
      CAPTURE(i);
      CHECK(std::fabs(on_gpu.losses[i] - on_cpu.losses[i]) <=
            tolerance_of(training) * std::fabs(on_cpu.losses[i]));
    }
  }
}

}  // namespace

TEST_CASE("thread ranks of one GPU: what rounds once has the CPU's bits") {
  for (const Training& training : tried(all_trainings(SmallModel::kRoundedOnce))) {
    const std::string what = describe(training);
    CAPTURE(what);
    const TrainingResult on_cpu = train_on_cpu(training);
    CHECK(std::isfinite(on_cpu.losses.back()));  // NaN would hide a difference
    CHECK(on_cpu.losses.back() != on_cpu.losses.front());
    CHECK(difference(train_on_this_gpu(training), on_cpu) == "");
  }
}

TEST_CASE("thread ranks of one GPU: a GPT has the CPU's losses") {
  compare_losses(SmallModel::kGpt);
}

TEST_CASE("thread ranks of one GPU: a BERT has the CPU's losses") {
  compare_losses(SmallModel::kBert);
}

TEST_CASE("thread ranks of one GPU: a GPT has the same bits each time") {
  for (const Training& training : tried(covering_trainings(SmallModel::kGpt))) {
    const std::string what = describe(training);
    CAPTURE(what);
    const TrainingResult first = train_on_this_gpu(training);
    for (int again = 0; again < 2; ++again) {
      CAPTURE(again);
      CHECK(difference(train_on_this_gpu(training), first) == "");
    }
  }
}
