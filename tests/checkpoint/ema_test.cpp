// Saves an average of weights with a training and continues both on other numbers of ranks.
#include <fsdp/checkpoint.h>
#include <fsdp/ema.h>
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

// ExactNet and a buffer that differs between ranks.
struct TrackedNetImpl : testing::ExactNetImpl {
  TrackedNetImpl() : seen(register_buffer("seen", at::zeros({3}))) {}
  at::Tensor seen;
};
TORCH_MODULE(TrackedNet);

struct AveragedEnd {
  std::map<std::string, at::Tensor> averages;
  at::Tensor buffer;
  int64_t updates = 0;
};

// Trains the steps from `from` to `to` - 1 and saves a checkpoint of step `to`. Returns rank 0's
// averages.
AveragedEnd train_averaged(int world, const ScratchFolder& folder, int64_t from, int64_t to,
                           const std::string& tag, double decay = 0.75) {
  AveragedEnd end;
  run_torch_ranks(world, [&](const Mesh& mesh) {
    Unit<TrackedNet> model;
    Engine engine(model, mesh);
    AdamW optimizer(engine, {.lr = 1e-2});
    Ema ema(engine, {.decay = decay, .buffers = true});
    TrainingState state(engine);
    state.add("optimizer", optimizer).add("ema", ema);
    if (from > 0) {
      const auto report = load(state, folder / ("step-" + std::to_string(from)));
      const bool notes_decay = decay != 0.75;
      bool found = false;
      for (const std::string& note : report.notes) {
        found = found || note == "ema: decay is 0.5; the checkpoint has 0.75";
      }
      CHECK(found == notes_decay);
    }
    for (int64_t step = from; step < to; ++step) {
      model->seen.fill_(static_cast<double>(step));
      testing::take_exact_step(engine, model, optimizer, step);
      ema.update();
    }
    save(state, folder / ("step-" + std::to_string(to) + tag), {.step = to});
    const int64_t updates = ema.updates();
    const AveragedWeights averaged(ema);
    CHECK_THROWS_WITH_AS(save(state, folder / "refused", {.step = to}),
                         doctest::Contains("fsdp::save was called while an AveragedWeights"),
                         StateError);
    auto averages = testing::full_parameters(engine);
    if (mesh.rank() == 0) end = {std::move(averages), model->seen.clone(), updates};
  });
  return end;
}

TEST_CASE("an average goes on from a checkpoint on any number of ranks, to the bit") {
  const ScratchFolder folder;
  train_averaged(4, folder, 0, 2, "");
  const AveragedEnd whole = train_averaged(4, folder, 0, 4, "-whole");
  for (const int world : {1, 2, 3, 5}) {
    CAPTURE(world);
    const AveragedEnd resumed =
        train_averaged(world, folder, 2, 4, "-again-" + std::to_string(world));
    CHECK(resumed.updates == 4);
    CHECK(at::equal(resumed.buffer, whole.buffer));
    for (const auto& [fqn, value] : whole.averages) {
      CAPTURE(fqn);
      CHECK(testing::bit_equal(value, resumed.averages.at(fqn)));
    }
  }
  train_averaged(2, folder, 2, 3, "-other-decay", 0.5);
}

TEST_CASE("averages are saved as weights that another run loads") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    AdamW optimizer(engine, {.lr = 1e-2});
    Ema ema(engine, {.decay = 0.5});
    for (int64_t step = 0; step < 3; ++step) {
      testing::take_exact_step(engine, model, optimizer, step);
      ema.update();
    }
    std::map<std::string, at::Tensor> averages;
    {
      const AveragedWeights averaged(ema);
      averages = testing::full_parameters(engine);
      save_weights(engine, folder / "averages");
    }
    CHECK_FALSE(
        testing::bit_equal(averages.at("scale"), testing::full_parameters(engine).at("scale")));
    load_weights(engine, folder / "averages");
    for (const auto& [fqn, value] : testing::full_parameters(engine)) {
      CAPTURE(fqn);
      CHECK(testing::bit_equal(value, averages.at(fqn)));
    }
  });
}

TEST_CASE("an average that is not in the state is named when a training is saved") {
  const ScratchFolder folder;
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    const Ema ema(engine);
    TrainingState state(engine);
    CHECK_THROWS_WITH_AS(save(state, folder / "step"),
                         doctest::Contains("the training state lacks Ema"), StateError);
  });
}

}  // namespace
}  // namespace fsdp
