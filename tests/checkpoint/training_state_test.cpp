// Saves and loads whole trainings as sharded checkpoints.
#include "fsdp/training_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/checkpoint.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <functional>

#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "fsdp/lr_scheduler.h"
#include "plan/placement.h"
#include "support/models.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::build_seeded;
using testing::Chain;
using testing::ExactTraining;
using testing::run_torch_ranks;

// A part of a training that other ranks continue.
struct Leg {
  int world = 1;
  Options options{};
  bool by_policy = false;
  MeshShape groups{};  // used if it has several ranks
  int64_t steps = 2;   // 0: only loads and saves
};

// Trains the steps from `from` to `to` - 1 from the checkpoint of step `from`, and saves one of
// step `to`.
template <class Model>
void train_leg(const Mesh& mesh, const ScratchFolder& folder, const std::string& kind,
               const Options& options, int64_t from, int64_t to, Model model) {
  Engine engine(model, mesh, testing::options_for(kind, options));
  const std::unique_ptr<Optimizer> optimizer = testing::make_optimizer(engine, kind);
  int64_t seen = -1;
  TrainingState state(engine);
  state.add("optimizer", *optimizer).add("seen", seen);
  if (from > 0) {
    CHECK(load(state, folder / ("step-" + std::to_string(from))).step == from);
    CHECK(seen == from);
    CHECK(optimizer->steps() == from);
  }
  for (int64_t step = from; step < to; ++step) {
    testing::take_exact_step(engine, model, *optimizer, step);
  }
  seen = to;
  const std::filesystem::path saved = folder / ("step-" + std::to_string(to));
  if (from == to && mesh.rank() == 0) std::filesystem::remove_all(saved);
  save(state, saved, {.step = to});
  const ExactTraining names{.folder = folder.path()};
  save_weights(engine, weights_at(names, to, "-legs"));
  save_optimizer(*optimizer, optimizer_at(names, to, "-legs"));
}

void train_legs(const ScratchFolder& folder, const std::string& kind,
                const std::vector<Leg>& legs) {
  int64_t step = 0;
  for (const Leg& leg : legs) {
    const auto body = [&](const Mesh& mesh) {
      Options options = leg.options;
      if (leg.by_policy) {
        options.units = by_type<testing::ExactPart>();
        train_leg(mesh, folder, kind, options, step, step + leg.steps,
                  testing::PlainNet(testing::columns_for(kind)));
      } else {
        train_leg(mesh, folder, kind, options, step, step + leg.steps,
                  Unit<testing::ExactNet>(testing::columns_for(kind)));
      }
    };
    if (leg.groups.size(Axis::kWorld) > 1) {
      run_torch_ranks(leg.groups, body);
    } else {
      run_torch_ranks(leg.world, body);
    }
    step += leg.steps;
  }
}

TEST_CASE("a training passes over 1, 2, 4, 3, 8 and 1 ranks, and no bit of its state changes") {
  for (const std::string kind : {"adamw", "sgd", "radam", "lion", "lamb", "lars", "adamw_8bit"}) {
    CAPTURE(kind);
    const ScratchFolder folder;
    train_legs(
        folder, kind,
        {{.world = 1},
         {.world = 2, .options = {.strategy = Strategy::kZero1}},
         {.options = {.strategy = Strategy::kHybridShard}, .groups = {.replicate = 2, .shard = 2}},
         // The sums of this training are not exact in bfloat16.
         {.world = 2,
          .options = {.mixed_precision = {.param_dtype = torch::kBFloat16}},
          .steps = 0},
         {.world = 3, .options = {.cpu_offload = true}, .by_policy = true},
         {.options = {.strategy = Strategy::kHpz}, .groups = {.replicate = 4, .shard = 2}},
         {.world = 1, .by_policy = true}});
    ExactTraining whole{.folder = folder.path(),
                        .optimizer = kind,
                        .saves_at = 2,
                        .to = 10,
                        .last = testing::columns_for(kind)};
    run_torch_ranks(1, [&](const Mesh& mesh) { train_exactly(mesh, whole); });
    CHECK(read_whole(weights_at(whole, 10, "-legs")) == read_whole(weights_at(whole, 10)));
    CHECK(read_whole(optimizer_at(whole, 10, "-legs")) == read_whole(optimizer_at(whole, 10)));
  }
}

TEST_CASE("every strategy writes a checkpoint that every other one reads") {
  const ScratchFolder folder;
  std::vector<Leg> legs;
  for (const Strategy strategy : testing::kAllStrategies) {
    legs.push_back({.options = {.strategy = strategy}, .groups = {.replicate = 2, .shard = 2}});
  }
  train_legs(folder, "adamw", legs);
  const auto steps = static_cast<int64_t>(legs.size()) * 2;
  ExactTraining whole{.folder = folder.path(), .saves_at = 2, .to = steps};
  run_torch_ranks(1, [&](const Mesh& mesh) { train_exactly(mesh, whole); });
  CHECK(read_whole(weights_at(whole, steps, "-legs")) == read_whole(weights_at(whole, steps)));
  CHECK(read_whole(optimizer_at(whole, steps, "-legs")) == read_whole(optimizer_at(whole, steps)));
}

// ---- what a state holds ----

// A model with a parameter without dimensions, one that the engine ignores, a buffer that is equal
// on all ranks, and one that is not.
struct BuffersImpl : torch::nn::Module {
  BuffersImpl() {
    weight = register_parameter("weight", at::ones({127}));
    one = register_parameter("one", at::ones({}));
    own = register_parameter("own", at::ones({3}));
    mask = register_buffer("mask", at::ones({3, 2}, at::kBool));
    seen = register_buffer("seen", at::zeros({2}, at::kLong));
  }
  at::Tensor forward() {
    seen += 1;
    return (weight * weight).sum() * one + (own * own).sum();
  }
  at::Tensor weight, one, own, mask, seen;
};
TORCH_MODULE(Buffers);

const Options kIgnoresOwn{.ignore = [](std::string_view fqn) { return fqn == "own"; }};

TEST_CASE("buffers, ignored parameters, values and random states are restored, rank by rank") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<Buffers> model;
    Engine engine(model, mesh, kIgnoresOwn);
    TrainingState state(engine);
    int64_t count = 7;
    double best = 0.1;
    std::string name = "first run\n";
    at::Tensor curve = at::arange(4, at::kDouble);
    state.add("count", count).add("best", best).add("name", name).add("curve", curve);
    const at::NoGradGuard no_grad;
    model->seen.fill_(10 + mesh.rank());
    model->own.fill_(0.5);
    save(state, folder / "saved", {.step = 4});
  });
  for (const int world : {2, 1, 3}) {
    CAPTURE(world);
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<Buffers> model;
      Engine engine(model, mesh, kIgnoresOwn);
      TrainingState state(engine);
      int64_t count = 0;
      double best = 0;
      std::string name;
      at::Tensor curve = at::zeros(4, at::kDouble);
      state.add("count", count).add("best", best).add("name", name).add("curve", curve);
      const LoadStateReport report = load(state, folder / "saved");
      CHECK(report.step == 4);
      CHECK(report.notes.empty() == (world == 2));
      CHECK(model->seen[0].item<int64_t>() == 10 + mesh.rank() % 2);
      CHECK(model->mask.all().item<bool>());
      CHECK(model->own[2].item<float>() == 0.5);
      CHECK(count == 7);
      CHECK(best == 0.1);
      CHECK(name == "first run\n");
      CHECK(curve.equal(at::arange(4, at::kDouble)));
    });
  }
}

// ---- use in a run ----

std::vector<float> values_of(Engine& engine) {
  std::vector<float> values;
  engine.visit_full_parameters([&](std::string_view, const at::Tensor& value) {
    const at::Tensor host = value.to(at::kCPU).contiguous();
    values.insert(values.end(), host.const_data_ptr<float>(),
                  host.const_data_ptr<float>() + host.numel());
  });
  return values;
}

TEST_CASE("a live training is rolled back, and its next steps are those of the first time") {
  const ScratchFolder folder;
  run_torch_ranks(3, [&](const Mesh& mesh) {
    Unit<testing::ExactNet> model(17);
    Engine engine(model, mesh);
    AdamW optimizer(engine, {.lr = 0.1});
    CosineAnnealingLR schedule(optimizer, {.T_max = 9});
    TrainingState state(engine);
    state.add("optimizer", optimizer).add("schedule", schedule);
    const auto train = [&] {
      for (int64_t step = 0; step < 3; ++step) {
        testing::take_exact_step(engine, model, optimizer, 3 + step);
        schedule.step();
      }
      return values_of(engine);
    };
    train();
    save(state, folder / "saved", {.step = 3});
    const double lr = optimizer.lr();
    const std::vector<float> first = train();
    CHECK(optimizer.lr() != lr);
    load(state, folder / "saved");
    CHECK(optimizer.lr() == lr);
    CHECK(optimizer.steps() == 3);
    CHECK(train() == first);
  });
}

TEST_CASE("two engines with an optimizer each are one state") {
  const ScratchFolder folder;
  std::vector<float> saved[2];
  const auto with_both = [&](int world, const std::function<void(TrainingState&, Engine* [2])>& use,
                             bool trains) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<testing::ExactNet> generator(17), critic(5);
      Engine engines[2]{{generator, mesh}, {critic, mesh}};
      SGD first(engines[0], {.lr = 0.1, .momentum = 0.9}), second(engines[1], {.lr = 0.2});
      TrainingState state(engines[0]);
      state.add("critic", engines[1]).add("first", first).add("second", second);
      for (int64_t step = 0; step < 2 && trains; ++step) {
        testing::take_exact_step(engines[0], generator, first, step);
        testing::take_exact_step(engines[1], critic, second, step);
      }
      Engine* both[2]{&engines[0], &engines[1]};
      use(state, both);
    });
  };
  with_both(
      2,
      [&](TrainingState& state, Engine* engines[2]) {
        save(state, folder / "saved");
        for (int i = 0; i < 2; ++i) {
          const std::vector<float> values = values_of(*engines[i]);
          if (engines[i]->mesh().rank() == 0) saved[i] = values;
        }
      },
      /*trains=*/true);
  with_both(
      3,
      [&](TrainingState& state, Engine* engines[2]) {
        load(state, folder / "saved");
        for (int i = 0; i < 2; ++i) CHECK(values_of(*engines[i]) == saved[i]);
      },
      /*trains=*/false);
}

template <class TorchOptimizer, class Options>
void check_torch_optimizer(const Options& options) {
  const ScratchFolder folder;
  std::vector<float> whole, resumed;
  const auto run = [&](int world, int64_t from, int64_t to, std::vector<float>& end) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<testing::ExactNet> model(17);
      Engine engine(model, mesh);
      TorchOptimizer optimizer(engine.parameters(), options);
      TrainingState state(engine);
      state.add("optimizer", optimizer);
      if (from > 0) load(state, folder / "saved");
      for (int64_t step = from; step < to; ++step) {
        model(step).backward();
        optimizer.step();
        optimizer.zero_grad();
        if (step + 1 == 2 && from == 0) save(state, folder / "saved", {.step = 2});
      }
      const std::vector<float> values = values_of(engine);
      if (mesh.rank() == 0) end = values;
    });
  };
  run(2, 0, 4, whole);
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    run(world, 2, 4, resumed);
    CHECK(resumed == whole);
  }
}

TEST_CASE("the state of LibTorch's optimizers is saved and continued on any number of ranks") {
  check_torch_optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  check_torch_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true));
  check_torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  check_torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
}
}  // namespace
}  // namespace fsdp
