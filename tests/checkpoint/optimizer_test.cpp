// Saves an optimizer's state to a file and loads it in another run.
#include <fsdp/safetensors.h>

#include <cstring>

#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "plan/placement.h"
#include "support/models.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::Chain;
using testing::ExactNet;
using testing::ExactTraining;
using testing::run_torch_ranks;
using testing::take_exact_step;
using testing::train_exactly;

using Names = std::vector<std::string>;

// Compares both files. Their bytes are the same for any number of ranks.
void check_same_end(const ExactTraining& training) {
  CHECK(read_whole(weights_at(training, 6, training.tag)) == read_whole(weights_at(training, 6)));
  CHECK(read_whole(optimizer_at(training, 6, training.tag)) ==
        read_whole(optimizer_at(training, 6)));
}

TEST_CASE("a run of 4 ranks goes on, on any number of ranks, as if nothing had been, to the bit") {
  for (const std::string kind : {"adamw", "sgd", "radam", "lion", "lamb", "lars", "adamw_8bit"}) {
    const ScratchFolder folder;
    ExactTraining training{
        .folder = folder.path(), .optimizer = kind, .last = testing::columns_for(kind)};
    run_torch_ranks(4, [&](const Mesh& mesh) { train_exactly(mesh, training); });
    training.from = 3;
    training.tag = "-again";
    for (const int world : {1, 2, 3, 5}) {
      CAPTURE(kind);
      CAPTURE(world);
      run_torch_ranks(world, [&](const Mesh& mesh) { train_exactly(mesh, training); });
      check_same_end(training);
    }
  }
}

TEST_CASE("under every strategy, on the host and on the device, a file is the same and is read") {
  for (const std::string kind : {"adamw", "adamw_8bit"}) {
    CAPTURE(kind);
    const ScratchFolder folder;
    ExactTraining training{
        .folder = folder.path(), .optimizer = kind, .last = testing::columns_for(kind)};
    run_torch_ranks(1, [&](const Mesh& mesh) { train_exactly(mesh, training); });
    training.from = 3;
    training.tag = "-again";
    for (const Strategy strategy : testing::kAllStrategies) {
      for (const bool offload : {false, true}) {
        CAPTURE(name_of(strategy));
        CAPTURE(offload);
        training.options = {.cpu_offload = offload, .strategy = strategy};
        run_torch_ranks({.replicate = 2, .shard = 2},
                        [&](const Mesh& mesh) { train_exactly(mesh, training); });
        check_same_end(training);
      }
    }
  }
}

TEST_CASE("units by policy go on from what units by type saved") {
  const ScratchFolder folder;
  ExactTraining training{.folder = folder.path()};
  run_torch_ranks(2, [&](const Mesh& mesh) { train_exactly(mesh, training); });
  training.from = 3;
  training.tag = "-again";
  training.by_policy = true;
  run_torch_ranks(3, [&](const Mesh& mesh) { train_exactly(mesh, training); });
  check_same_end(training);
}

// Checks tensors and metadata against the format on which the docs and other programs rely.
TEST_CASE("the file holds moments and counts by FQN, and says which optimizer") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    train_exactly(mesh, {.folder = folder.path(), .to = 3});
    train_exactly(mesh, {.folder = folder.path(), .optimizer = "sgd", .to = 3, .tag = "-sgd"});
  });
  const SafetensorsFile file(folder / "optimizer-3");
  CHECK(file.metadata() ==
        std::map<std::string, std::string>{{"format", "fsdp-optimizer"},
                                           {"version", "1"},
                                           {"optimizer", "AdamW"},
                                           {"lr", "0.03"},
                                           {"steps", "3"},
                                           {"weights", file.metadata().at("weights")},
                                           {"beta1", "0.9"},
                                           {"beta2", "0.999"},
                                           {"eps", "1e-08"},
                                           {"weight_decay", "0.1"},
                                           {"bias_correction", "1"}});
  CHECK(file.tensors().size() == 3 * 7);
  const StoredTensor* moment = file.find("part0.weight.exp_avg_sq");
  REQUIRE(moment != nullptr);
  CHECK(moment->shape == std::vector<int64_t>{5, 7});
  REQUIRE(file.find("scale.step") != nullptr);
  int64_t steps = 0;
  std::memcpy(&steps, file.bytes(*file.find("scale.step")).data(), sizeof steps);
  CHECK(steps == 3);
  const SafetensorsFile sgd(folder / "optimizer-3-sgd");
  CHECK(sgd.find("part0.weight.momentum_buffer") != nullptr);
  CHECK(sgd.tensors().size() == 2 * 7);
}

TEST_CASE("a resumed run has the losses of the undisturbed one") {
  const ScratchFolder folder;
  // Returns rank 0's losses at the steps `from` to `to` - 1. The model's sums are not exact.
  const auto losses = [&](int from, int to, int saves_at) {
    std::vector<float> result;
    run_torch_ranks(3, [&](const Mesh& mesh) {
      Unit<Chain> model = testing::build_seeded(7, [] { return Unit<Chain>(); });
      Engine engine(model, mesh);
      AdamW optimizer(engine, {.lr = 1e-2});
      if (from > 0) {
        load_weights(engine, folder / "weights");
        CHECK(load_optimizer(optimizer, folder / "optimizer").notes.empty());
        CHECK(optimizer.steps() == from);
      }
      for (int step = from; step < to; ++step) {
        const at::Tensor loss = testing::loss_of(model, testing::batch_of(step, mesh.rank()));
        loss.backward();
        optimizer.clip_grad_norm(0.5);
        optimizer.step();
        optimizer.zero_grad();
        if (mesh.rank() == 0) result.push_back(loss.item<float>());
        if (step + 1 != saves_at) continue;
        save_weights(engine, folder / "weights");
        save_optimizer(optimizer, folder / "optimizer");
      }
    });
    return result;
  };
  const std::vector<float> whole = losses(0, 8, 4);
  CHECK(losses(4, 8, -1) == std::vector<float>(whole.begin() + 4, whole.end()));
}

// Trains the steps `from` to `to` - 1. part1 is unfrozen before step 1. scale is frozen before step
// 2. A checkpoint is saved after step 2. When part1 is unfrozen, all its state begins at zero, its
// count too.
void train_in_phases(const Mesh& mesh, const std::filesystem::path& folder, int from, int to,
                     bool frozen_at_first) {
  Unit<ExactNet> model;
  const auto part1 = [&](bool trained) {
    for (at::Tensor& each : model->parts[1]->parameters()) each.set_requires_grad(trained);
  };
  if (frozen_at_first) part1(false);
  Engine engine(model, mesh);
  AdamW optimizer(engine, {.lr = 1e-2});
  if (from > 0) {
    if (frozen_at_first) part1(true);
    model->scale.set_requires_grad(false);
    load_weights(engine, folder / "weights");
    load_optimizer(optimizer, folder / "optimizer");
  }
  for (int step = from; step < to; ++step) {
    if (step == 1) part1(true);
    if (step == 2) model->scale.set_requires_grad(false);
    take_exact_step(engine, model, optimizer, step);
    if (step != 2) continue;
    save_weights(engine, folder / "weights");
    save_optimizer(optimizer, folder / "optimizer");
  }
  save_weights(engine, folder / ("weights" + std::to_string(from)));
  save_optimizer(optimizer, folder / ("optimizer" + std::to_string(from)));
}

TEST_CASE("parameters that were unfrozen later keep a count of their own, in whatever segment") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    train_in_phases(mesh, folder.path(), 0, 6, /*frozen_at_first=*/true);
  });
  const SafetensorsFile file(folder / "optimizer");
  const auto steps_of = [&](const std::string& fqn) {
    int64_t steps = -1;
    REQUIRE(file.find(fqn + ".step") != nullptr);
    std::memcpy(&steps, file.bytes(*file.find(fqn + ".step")).data(), sizeof steps);
    return steps;
  };
  CHECK(steps_of("part0.weight") == 3);
  CHECK(steps_of("part1.weight") == 2);
  CHECK(file.find("scale.exp_avg") != nullptr);  // scale is frozen now, but may be unfrozen later
  for (const int world : {1, 3}) {
    // If all parameters are trained from the start, parameters with different counts share
    // segments.
    for (const bool frozen_at_first : {false, true}) {
      CAPTURE(world);
      CAPTURE(frozen_at_first);
      run_torch_ranks(world, [&](const Mesh& mesh) {
        train_in_phases(mesh, folder.path(), 3, 6, frozen_at_first);
      });
      CHECK(read_whole(folder / "weights3") == read_whole(folder / "weights0"));
      CHECK(read_whole(folder / "optimizer3") == read_whole(folder / "optimizer0"));
    }
  }
}

TEST_CASE("what was never trained when a state was loaded is counted from its first step on") {
  const ScratchFolder folder;
  for (const std::string name : {"undisturbed", "loaded"}) {
    run_torch_ranks(2, [&](const Mesh& mesh) {
      Unit<ExactNet> model;
      Engine engine(model, mesh);  // part1 is trainable at this point
      const auto part1 = [&](bool trained) {
        for (at::Tensor& each : model->parts[1]->parameters()) each.set_requires_grad(trained);
      };
      part1(false);
      AdamW optimizer(engine, {.lr = 1e-2});
      take_exact_step(engine, model, optimizer, 0);
      if (name == "loaded") {
        save_optimizer(optimizer, folder / "between");
        load_optimizer(optimizer, folder / "between");
      }
      part1(true);
      for (int step = 1; step < 3; ++step) take_exact_step(engine, model, optimizer, step);
      save_optimizer(optimizer, folder / name);
    });
  }
  CHECK(read_whole(folder / "undisturbed") == read_whole(folder / "loaded"));
}

TEST_CASE("frozen parameters are not in the file, and units may be others") {
  const ScratchFolder folder;
  const auto frozen = [](torch::nn::Module& model) {
    for (at::Tensor& each : model.parameters()) each.set_requires_grad(each.dim() > 1);
  };
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    frozen(*model);
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 1e-2, .momentum = 0.5});
    take_exact_step(engine, model, optimizer, 0);
    save_weights(engine, folder / "weights");
    save_optimizer(optimizer, folder / "optimizer");
  });
  CHECK(SafetensorsFile(folder / "optimizer").find("scale.step") == nullptr);
  // In this engine, part0 and part1 are in the root's segment.
  run_torch_ranks(3, [&](const Mesh& mesh) {
    testing::PlainNet model;
    frozen(*model);
    Engine engine(model, mesh,
                  {.units = by_name([](std::string_view fqn) { return fqn == "part2"; })});
    SGD optimizer(engine, {.lr = 1e-2, .momentum = 0.5});
    load_weights(engine, folder / "weights");
    load_optimizer(optimizer, folder / "optimizer");
    CHECK(optimizer.steps() == 1);
    save_optimizer(optimizer, folder / "again");
  });
  CHECK(read_whole(folder / "again") == read_whole(folder / "optimizer"));
}

TEST_CASE("lr comes from the file; other options are the program's, and what differs is told") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    {
      AdamW optimizer(engine, {.lr = 0.25, .beta2 = 0.95});
      save_optimizer(optimizer, folder / "optimizer");
    }
    AdamW optimizer(engine, {.lr = 1e-3, .weight_decay = 0});
    const OptimizerReport report = load_optimizer(optimizer, folder / "optimizer");
    CHECK(optimizer.lr() == 0.25);
    CHECK(optimizer.steps() == 0);
    CHECK(report.notes == Names{"beta2 is 0.999; the saved optimizer had '0.95'",
                                "weight_decay is 0; the saved optimizer had '0.01'"});
  });
}

// The digest is the same for every strategy, every number of ranks and every choice of units. The
// test cases above show this, because they compare whole files.
TEST_CASE("a state is refused beside weights of another step, with both steps") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    train_exactly(mesh, {.folder = folder.path(), .saves_at = 2, .to = 3});
  });
  for (const int world : {1, 3}) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<ExactNet> model;
      Engine engine(model, mesh);
      const auto optimizer = testing::make_optimizer(engine, "adamw");
      load_weights(engine, folder / "weights-2");
      OptimizerReport report;
      const Outcome outcome = try_to_load_optimizer(*optimizer, folder / "optimizer-3", report);
      CHECK(outcome.failed());
      if (outcome.mine) {
        CHECK_THROWS_WITH_AS(std::rethrow_exception(outcome.mine),
                             doctest::Contains("the state belongs to other weights: it was saved "
                                               "at step 3, this optimizer is at step 0"),
                             IoError);
      }
      CHECK(optimizer->steps() == 0);
      load_optimizer(*optimizer, folder / "optimizer-2");
      CHECK(optimizer->steps() == 2);
      CHECK(load_optimizer(*optimizer, folder / "optimizer-3", {.beside_other_weights = true})
                .notes.empty());
      CHECK(optimizer->steps() == 3);
    });
  }
}

TEST_CASE("one weight that differs, or two that are exchanged, are other weights") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    const auto optimizer = testing::make_optimizer(engine, "adamw");
    take_exact_step(engine, model, *optimizer, 0);
    save_optimizer(*optimizer, folder / "state");
    const auto change = [&](const std::function<void(at::Tensor)>& how) {
      const Gathered whole(engine, WriteBack::kFromRankZero);
      const at::NoGradGuard no_grad;
      how(model->parts[0]->weight);
    };
    const auto loads = [&] {
      OptimizerReport report;
      return !try_to_load_optimizer(*optimizer, folder / "state", report).failed();
    };
    CHECK(loads());
    const auto exchange = [](at::Tensor weight) {
      const at::Tensor first = weight[0][0].clone();
      weight[0][0].copy_(weight[1][1]);
      weight[1][1].copy_(first);
    };
    change([](at::Tensor weight) {
      weight[0][0].fill_(0.25);
      weight[1][1].fill_(0.5);
    });
    CHECK_FALSE(loads());
    save_optimizer(*optimizer, folder / "state");
    CHECK(loads());
    change(exchange);
    CHECK_FALSE(loads());
    change(exchange);
    CHECK(loads());
  });
}

TEST_CASE("a file without a digest of the weights is loaded with a note") {
  const ScratchFolder folder;
  run_torch_ranks(
      2, [&](const Mesh& mesh) { train_exactly(mesh, {.folder = folder.path(), .to = 3}); });
  const SafetensorsFile file(folder / "optimizer-3");
  std::map<std::string, std::string> metadata = file.metadata();
  metadata.erase("weights");
  std::vector<TensorSpec> specs;
  for (const StoredTensor& each : file.tensors()) {
    specs.push_back({each.name, each.dtype, each.shape});
  }
  SafetensorsWriter writer(folder / "old", specs, metadata);
  for (const StoredTensor& each : file.tensors()) writer.append(each.name, file.bytes(each));
  writer.commit();
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    const auto optimizer = testing::make_optimizer(engine, "adamw");
    CHECK(load_optimizer(*optimizer, folder / "old").notes ==
          Names{"the file has no digest of its weights: an earlier version of fsdp wrote it"});
  });
}

TEST_CASE("saving and loading are between steps") {
  run_torch_ranks(1, [&](const Mesh& mesh) {
    const ScratchFolder folder;
    Unit<ExactNet> model;
    auto engine = std::make_unique<Engine>(model, mesh);
    AdamW optimizer(*engine, {});
    engine.reset();
    CHECK_THROWS_WITH_AS(
        save_optimizer(optimizer, folder / "s"),
        doctest::Contains("save_optimizer is not allowed after the engine was destroyed"),
        StateError);
    CHECK_THROWS_WITH_AS(
        load_optimizer(optimizer, folder / "s"),
        doctest::Contains("load_optimizer is not allowed after the engine was destroyed"),
        StateError);
  });
}

}  // namespace
}  // namespace fsdp
