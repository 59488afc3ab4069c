#include "fsdp/best_model.h"

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/support/exact_training.h"
#include "fsdp/checkpoints.h"
#include "fsdp/error.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A training that evaluates after every second step. Its metrics are given.
struct EvaluatedTraining {
  const ScratchFolder& folder;
  std::vector<double> metrics{};  // of the evaluations after steps 2, 4, …
  EvaluationOptions evaluation{.strategy = EvalStrategy::kSteps, .eval_steps = 2};
  int64_t save_steps = 0;
  int64_t killed_after = -1;  // leaves after this step, as if the process had died
  std::string resume = "none";
};

struct Ending {
  int64_t steps = 0, best_step = 0;
  double metric = 0;
  float weight = 0;  // of the model that was loaded at the end; it changes with each step
  bool operator==(const Ending&) const = default;
};

// Returns the ending, which must be equal on all ranks.
Ending train(int world, const EvaluatedTraining& training) {
  std::vector<Ending> endings(world);
  testing::run_ranks(
      world,
      [&](const Mesh& mesh) {
        Unit<testing::ExactPart> model(3, 5);
        Engine engine(model, mesh);
        SGD optimizer(engine, {.lr = 0.1});
        const CheckpointOptions options{.folder = training.folder / "checkpoints",
                                        .save_steps = training.save_steps,
                                        .resume = training.resume};
        BestModel best({.evaluation = training.evaluation,
                        .folder = training.folder / "best",
                        .checkpoints = options.folder});
        TrainingState state(engine);
        state.add("optimizer", optimizer).add("best", best);
        Checkpoints checkpoints(state, options);
        int64_t step = checkpoints.resume();
        const auto evaluations = static_cast<int64_t>(training.metrics.size());
        while (true) {
          const bool is_due = step > 0 && training.evaluation.is_due(step, false);
          if (is_due && !best.is_evaluated(step)) {
            best.update(state, step, training.metrics[step / 2 - 1]);
          }
          if (best.stops() || step == 2 * evaluations || step == training.killed_after) break;
          engine.forward([&] { return model(1); }).backward();
          optimizer.step();
          optimizer.zero_grad();
          checkpoints.after_step(++step);
        }
        if (step != training.killed_after) best.load(state);
        const float weight = testing::full_parameters(engine).at("bias")[1].item<float>();
        endings[mesh.rank()] = {step, best.step(), best.metric(), weight};
      },
      testing::torch_ranks_options());
  for (const Ending& each : endings) CHECK(each == endings.front());
  return endings.front();
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

TEST_CASE("the best model is loaded at the end, on any number of ranks") {
  std::optional<Ending> first;
  for (const int world : {1, 2, 3}) {
    const ScratchFolder folder;
    const Ending ending = train(world, {.folder = folder, .metrics = {kNan, 3, 5, 5, 4}});
    CHECK(ending.steps == 10);
    CHECK(ending.best_step == 6);
    CHECK(ending.metric == 5);
    CHECK(ending == first.value_or(ending));
    first = ending;
    CHECK(names_in(folder / "best") == std::vector<std::string>{"step-00000006"});
    // The weights are those of a training that ends with the best step.
    const ScratchFolder shorter;
    CHECK(train(world, {.folder = shorter, .metrics = {1, 2, 3}}).weight == ending.weight);
    CHECK(train(world, {.folder = shorter, .metrics = {1, 2, 3, 4}}).weight != ending.weight);
  }
}

TEST_CASE("a metric can be better if it is smaller, and none may be better than NaN") {
  const ScratchFolder folder;
  EvaluatedTraining training{.folder = folder, .metrics = {3, 1, 2}};
  training.evaluation.greater_is_better = false;
  CHECK(train(1, training).best_step == 4);
  training.metrics = {kNan, kNan};
  CHECK(train(1, training).best_step == -1);
}

TEST_CASE("early stopping counts evaluations that do not improve the metric by the threshold") {
  const auto steps = [](std::vector<double> metrics, int64_t patience, double threshold) {
    const ScratchFolder folder;
    EvaluatedTraining training{.folder = folder, .metrics = std::move(metrics)};
    training.evaluation.early_stopping_patience = patience;
    training.evaluation.early_stopping_threshold = threshold;
    const Ending ending = train(2, training);
    return std::array{ending.steps, ending.best_step};
  };
  using Steps = std::array<int64_t, 2>;
  CHECK(steps({1, 2, 3, 3, 3, 4}, 2, 0) == Steps{10, 6});
  CHECK(steps({1, 2, 3, 3, 4, 4}, 2, 0) == Steps{12, 10});
  CHECK(steps({1, 0, 2, 0, 0, 0}, 2, 0) == Steps{10, 6});
  // 1.2 and 1.4 are better, but not by more than 0.5: they are kept, and the run stops.
  CHECK(steps({1, 1.2, 1.4, 9}, 2, 0.5) == Steps{6, 6});
  CHECK(steps({kNan, kNan, 9}, 2, 0) == Steps{4, -1});
}

TEST_CASE("a run that resumes has the best model, and stops at the step, of the undisturbed run") {
  const std::vector<double> metrics{1, 5, 6, 2, 3, 4, 7};
  const auto training_in = [&](const ScratchFolder& folder) {
    EvaluatedTraining training{.folder = folder, .metrics = metrics, .save_steps = 3};
    training.evaluation.early_stopping_patience = 3;
    return training;
  };
  const ScratchFolder undisturbed;
  const Ending whole = train(2, training_in(undisturbed));
  CHECK(whole.steps == 12);
  CHECK(whole.best_step == 6);
  // From step 3, whose best model is that of step 2, from step 6, which is evaluated again, and
  // from step 9, where the count is 1.
  for (const int64_t killed_after : {5, 6, 8, 11}) {
    for (const int world : {2, 3}) {
      CAPTURE(killed_after);
      const ScratchFolder folder;
      EvaluatedTraining training = training_in(folder);
      training.killed_after = killed_after;
      train(2, training);
      training.killed_after = -1;
      training.resume = "auto";
      CHECK(train(world, training) == whole);
    }
  }
}

TEST_CASE("a best model that a checkpoint may need is kept") {
  const ScratchFolder folder;
  EvaluatedTraining training{.folder = folder, .metrics = {1, 2, 3}, .save_steps = 3};
  training.killed_after = 5;
  train(2, training);
  CHECK(names_in(folder / "best") == std::vector<std::string>{"step-00000002", "step-00000004"});
  // The metrics of the repeated steps are worse now: the best model is the one of step 2.
  training.killed_after = -1;
  training.metrics = {1, 0, 0};
  training.resume = "auto";
  CHECK(train(1, training).best_step == 2);
}

TEST_CASE("ranks with different metrics are refused") {
  const ScratchFolder folder;
  CHECK_THROWS_AS(testing::run_ranks(
                      2,
                      [&](const Mesh& mesh) {
                        Unit<testing::ExactPart> model(3, 5);
                        Engine engine(model, mesh);
                        BestModel best({.folder = folder / "best"});
                        TrainingState state(engine);
                        state.add("best", best);
                        best.update(state, 1, mesh.rank());
                      },
                      testing::torch_ranks_options()),
                  CommError);
}

}  // namespace
}  // namespace fsdp
