// Saves and loads optimizers with quantized moments.
#include <fsdp/safetensors.h>
#include <fsdp/training_state.h>

#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "support/models.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::ExactNet;
using testing::run_torch_ranks;
using testing::train_exactly;

constexpr const char* kKind = "adamw_8bit";
const int64_t kColumns = testing::columns_for(kKind);

TEST_CASE("a quantized moment is stored as codes in memory order and as one value per block") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    train_exactly(mesh, {.folder = folder.path(), .optimizer = kKind, .to = 3, .last = kColumns});
  });
  const SafetensorsFile file(folder / "optimizer-3");
  CHECK(file.metadata().at("optimizer") == "AdamW8bit");
  CHECK(file.metadata().at("strides.part2.weight") == "1,33");
  CHECK_FALSE(file.metadata().contains("strides.part0.weight"));  // it is not quantized
  const auto check = [&](const std::string& name, StoredDType dtype, std::vector<int64_t> shape) {
    CAPTURE(name);
    const StoredTensor* tensor = file.find(name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->dtype == dtype);
    CHECK(tensor->shape == shape);
  };
  for (const std::string moment : {"exp_avg", "exp_avg_sq"}) {
    check("part2.weight." + moment, StoredDType::kU8, {33, 131});
    check("part2.weight." + moment + "_absmax", StoredDType::kF32, {17});
    check("part2.bias." + moment, StoredDType::kF32, {131});
  }
  CHECK(file.tensors().size() == 3 * 7 + 2);
}

// Calls use(engine, optimizer) on one rank, so that it throws the errors itself. If `row_major` is
// true, the quantized parameter has this memory order.
void with_optimizer(const std::string& kind, bool row_major,
                    const std::function<void(Engine&, Optimizer&)>& use) {
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<ExactNet> model(kColumns);
    if (row_major) {
      at::Tensor& weight = model->parts[2]->weight;
      weight.set_data(weight.detach().contiguous());
    }
    Engine engine(model, mesh, testing::options_for(kKind, {}));
    const std::unique_ptr<Optimizer> optimizer = testing::make_optimizer(engine, kind);
    for (int64_t step = 0; step < 2; ++step) {
      testing::take_exact_step(engine, model, *optimizer, step);
    }
    use(engine, *optimizer);
  });
}

TEST_CASE("states with other blocks, or without, are refused, and nothing changes") {
  const ScratchFolder folder;
  with_optimizer(kKind, false, [&](Engine&, Optimizer& optimizer) {
    save_optimizer(optimizer, folder / "blocks");
  });
  with_optimizer("adamw", false, [&](Engine&, Optimizer& optimizer) {
    save_optimizer(optimizer, folder / "floats");
  });
  const auto refused = [&](Optimizer& optimizer, const char* file, const char* text) {
    save_optimizer(optimizer, folder / "before");
    CHECK_THROWS_WITH_AS(load_optimizer(optimizer, folder / file), doctest::Contains(text),
                         IoError);
    save_optimizer(optimizer, folder / "after");
    CHECK(read_whole(folder / "before") == read_whole(folder / "after"));
  };
  with_optimizer(kKind, true, [&](Engine&, Optimizer& optimizer) {
    refused(optimizer, "blocks",
            "parameter 'part2.weight' has strides 1,33 in the state, but row-major in the model");
    refused(optimizer, "floats", "expected state of AdamW8bit, got state of 'AdamW'");
  });
  with_optimizer("adamw", false, [&](Engine&, Optimizer& optimizer) {
    refused(optimizer, "blocks", "expected state of AdamW, got state of 'AdamW8bit'");
  });
}

TEST_CASE("a checkpoint of another AdamW is refused") {
  const ScratchFolder folder;
  const auto save_as = [&](const std::string& kind) {
    with_optimizer(kind, false, [&](Engine& engine, Optimizer& optimizer) {
      TrainingState state(engine);
      state.add("optimizer", optimizer);
      save(state, folder / kind);
    });
  };
  save_as(kKind);
  save_as("adamw");
  for (const auto& [kind, other] :
       {std::pair{std::string(kKind), "adamw"}, std::pair{std::string("adamw"), kKind}}) {
    with_optimizer(kind, false, [&, other = other](Engine& engine, Optimizer& optimizer) {
      TrainingState state(engine);
      state.add("optimizer", optimizer);
      CHECK_THROWS_WITH_AS(load(state, folder / other), doctest::Contains("AdamW"), IoError);
    });
  }
}

// The parameters of the two parts are trained by two optimizers, and one of them is frozen later.
TEST_CASE("several optimizers, and parameters that are frozen, resume exactly") {
  const ScratchFolder folder;
  const auto run = [&](int world, int64_t from, const std::string& name) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<ExactNet> model(kColumns);
      Engine engine(model, mesh, testing::options_for(kKind, {}));
      if (from > 0) model->parts[2]->bias.set_requires_grad(false);
      AdamW8bit last(engine, {.lr = 1e-2, .parameters = under("part2")});
      AdamW others(engine, {.lr = 1e-2, .parameters = [](const ShardedParameter& each) {
                              return !under("part2")(each);
                            }});
      TrainingState state(engine);
      state.add("last", last).add("others", others);
      if (from > 0) load(state, folder / "step-3");
      for (int64_t step = from; step < 6; ++step) {
        if (step == 3) model->parts[2]->bias.set_requires_grad(false);
        engine.forward([&](int64_t now) { return model(now); }, step).backward();
        for (Optimizer* each : {static_cast<Optimizer*>(&last), static_cast<Optimizer*>(&others)}) {
          each->step();
          each->zero_grad();
        }
        if (step == 2) save(state, folder / "step-3");
      }
      save_weights(engine, folder / name);
      save_optimizer(last, folder / (name + "-last"));
    });
  };
  run(3, 0, "whole");
  for (const int world : {1, 2, 5}) {
    CAPTURE(world);
    run(world, 3, "again");
    CHECK(read_whole(folder / "again") == read_whole(folder / "whole"));
    CHECK(read_whole(folder / "again-last") == read_whole(folder / "whole-last"));
  }
}

}  // namespace
}  // namespace fsdp
