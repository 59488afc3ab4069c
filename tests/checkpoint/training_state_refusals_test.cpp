// Errors of training states and their checkpoints.
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/support/exact_training.h"
#include "fsdp/checkpoints.h"
#include "fsdp/error.h"
#include "fsdp/lr_scheduler.h"
#include "fsdp/training_state.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::run_torch_ranks;

// Returns the text of the error that `call` throws, with its code in front: "70 the state lacks …".
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::to_string(error.exit_code()) + " " + error.what();
  }
  return "accepted";
}

bool begins(const std::string& text, const std::string& beginning) {
  return text.starts_with(beginning);
}

TEST_CASE("an object of the engine that was not added is an error of the first save") {
  const ScratchFolder folder;
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<testing::ExactPart> model(3, 5);
    Engine engine(model, mesh);
    AdamW optimizer(engine, {.lr = 0.1});
    LinearLR warm_up(optimizer, {});
    CosineAnnealingLR decay(optimizer, {.T_max = 9});
    SequentialLR schedule(optimizer, {.schedulers = {&warm_up, &decay}, .milestones = {3}});
    TrainingState state(engine);
    const auto saving = [&] { save(state, folder / "saved"); };
    CHECK(begins(refusal(saving), "70 the training state lacks AdamW"));
    state.add("optimizer", optimizer);
    CHECK(begins(refusal(saving),
                 "70 the training state lacks LinearLR, CosineAnnealingLR, "
                 "SequentialLR"));
    // A SequentialLR has the states of its schedulers.
    state.add("schedule", schedule);
    CHECK(refusal(saving) == "accepted");
    CHECK(begins(refusal(saving), "73 the checkpoint's folder exists already"));
    CHECK(begins(refusal([&] { state.add("schedule", schedule); }), "78 the name 'schedule'"));
    CHECK(begins(refusal([&] { state.add("a/b", schedule); }),
                 "78 an object cannot have the name 'a/b' in a training state"));
    LossScaler scaler(engine);
    CHECK(begins(refusal([&] { save(state, folder / "other"); }),
                 "70 the training state lacks LossScaler"));
    Unit<testing::ExactPart> other_model(3, 5);
    Engine other(other_model, mesh);
    SGD stranger(other, {});
    CHECK(begins(refusal([&] { state.add("stranger", stranger); }),
                 "70 'stranger' belongs to an engine that is not in the state"));
  });
}

TEST_CASE("gradients that wait for a step are not lost in a save") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<testing::ExactPart> model(3, 5);
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.1});
    TrainingState state(engine);
    state.add("optimizer", optimizer);
    model(0).backward();
    CHECK(begins(refusal([&] { save(state, folder / "saved"); }),
                 "70 gradients wait for a step of 'optimizer'"));
    optimizer.step();
    save(state, folder / "saved");
    optimizer.zero_grad();
  });
}

TEST_CASE("a checkpoint of another model, optimizer or state is refused by name") {
  const ScratchFolder folder;
  const auto with_state = [&](int64_t columns, const std::string& kind, bool has_count,
                              const std::function<void(TrainingState&)>& use) {
    run_torch_ranks(1, [&](const Mesh& mesh) {
      Unit<testing::ExactPart> model(3, columns);
      Engine engine(model, mesh);
      const std::unique_ptr<Optimizer> optimizer = testing::make_optimizer(engine, kind);
      int64_t count = 3;
      TrainingState state(engine);
      state.add("optimizer", *optimizer);
      if (has_count) state.add("count", count);
      use(state);
    });
  };
  with_state(5, "adamw", false, [&](TrainingState& state) { save(state, folder / "saved"); });
  const auto loading = [&](const LoadStateOptions& options = {}) {
    return [&folder, options](TrainingState& state) {
      return refusal([&] { load(state, folder / "saved", options); });
    };
  };
  with_state(7, "adamw", false, [&](TrainingState& state) {
    CHECK(begins(loading()(state),
                 "65 tensor 'model/weight/weight' is F32 of shape [3, 5] in the "
                 "checkpoint, expected F32 of shape [3, 7]"));
  });
  with_state(5, "sgd", false, [&](TrainingState& state) {
    CHECK(begins(loading()(state),
                 "65 'optimizer' in the checkpoint is of kind 'AdamW', expected SGD"));
    CHECK(loading({.weights_only = true})(state) == "accepted");
  });
  with_state(5, "adamw", true, [&](TrainingState& state) {
    CHECK(begins(loading()(state), "65 the checkpoint lacks 'count'"));
    save(state, folder / "counted");
  });
  with_state(5, "adamw", false, [&](TrainingState& state) {
    CHECK(begins(refusal([&] { load(state, folder / "counted"); }),
                 "65 the checkpoint has 'count', which the training state lacks"));
    CHECK(begins(refusal([&] { load(state, folder / "none"); }), "74 "));
    const auto excludes = [](std::string_view name) { return name.starts_with("model/"); };
    CHECK(loading({.exclude = excludes})(state) == "accepted");
  });
}

TEST_CASE("options of checkpoints that do not fit are refused with 64") {
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<testing::ExactPart> model(3, 5);
    Engine engine(model, mesh);
    TrainingState state(engine);
    const auto refused = [&](const CheckpointOptions& options) {
      return refusal([&] { Checkpoints(state, options); });
    };
    CHECK(begins(refused({.save_steps = 5}), "64 --save-steps has no folder"));
    CHECK(begins(refused({.resume = "auto"}), "64 --resume auto has no folder"));
    CHECK(begins(refused({.save_total_limit = 1}), "64 --save-total-limit is 1"));
    CHECK(begins(refused({.save_steps = -1}), "64 --save-steps is -1"));
    CHECK(refused({}) == "accepted");
  });
}

TEST_CASE("auto passes over damaged checkpoints and those that are not finite, and says so") {
  const ScratchFolder folder;
  std::vector<std::string> said;
  const auto run = [&](bool spoils) {
    int64_t from = -1;
    said.clear();
    testing::RunRanksOptions ranks = testing::torch_ranks_options();
    ranks.mesh.on_event = [&](const MeshEvent& event) { said.push_back(event.text.what); };
    run_ranks(
        1,
        [&](const Mesh& mesh) {
          Unit<testing::ExactPart> model(3, 5);
          Engine engine(model, mesh);
          TrainingState state(engine);
          Checkpoints checkpoints(
              state,
              {.folder = folder.path(), .save_steps = 1, .save_total_limit = 2, .resume = "auto"});
          from = checkpoints.resume();
          for (int64_t step = from + 1; step <= 3 && spoils; ++step) {
            const at::NoGradGuard no_grad;
            engine.parameters()[0].fill_(step == 3 ? NAN : static_cast<float>(step));
            CHECK_FALSE(checkpoints.after_step(step));
          }
        },
        ranks);
    return from;
  };
  CHECK(run(true) == 0);
  // Two finite ones are kept, and the one that is not finite is not counted.
  CHECK(folder.names() ==
        std::vector<std::string>{"step-00000001", "step-00000002", "step-00000003"});
  CHECK(run(false) == 2);
  CHECK(said.size() == 3);
  CHECK(said[0] == "a checkpoint with values that are not finite is passed over");
  CHECK(said[1] == "resumed from step 2 (" + (folder / "step-00000002").string() + ")");
  CHECK(begins(said[2], "a checkpoint takes "));
  std::filesystem::resize_file(folder / "step-00000002/manifest.json", 100);
  CHECK(run(false) == 1);
  std::filesystem::resize_file(folder / "step-00000001/shard-00000-of-00001.safetensors", 4200);
  CHECK(begins(refusal([&] { run(false); }), "65 none of 3 checkpoints can be loaded"));
}

}  // namespace
}  // namespace fsdp
