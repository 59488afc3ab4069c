// Saves and loads optimizers that train part of a model, or whose groups were changed.
#include <fsdp/checkpoint.h>
#include <fsdp/lr_scheduler.h>
#include <fsdp/safetensors.h>

#include "fsdp/error.h"
#include "optim/support/gan.h"
#include "support/scratch_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Parameters = std::map<std::string, at::Tensor>;

void check_bits(const Parameters& a, const Parameters& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [fqn, value] : a) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, b.at(fqn)));
  }
}

// A sequence of layers, with two parameter groups in addition to the default group.
struct Trainee {
  explicit Trainee(const Mesh& mesh,
                   std::vector<ParameterGroup> groups = {{.match = under("u1"),
                                                          .weight_decay = 0.1,
                                                          .name = "middle"},
                                                         {.match = is_bias_or_norm}})
      : model(build_seeded(7, graph_twin(3, 9, in_a_row).make)),
        engine(model, mesh, Options{}),
        optimizer(engine, {.lr = 0.1, .momentum = 0.9, .groups = std::move(groups)}) {}
  void step(int step, int rank) {
    graph_loss(*model, step, rank).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  OptimizerParamGroup& middle() { return optimizer.param_groups()[1]; }
  OptimizerParamGroup& small() { return optimizer.param_groups()[2]; }
  std::shared_ptr<torch::nn::Module> model;
  Engine engine;
  SGD optimizer;
};

}  // namespace

TEST_CASE("each optimizer's state comes out of a file and into another run, on any ranks") {
  const ScratchFolder folder;
  const auto run = [&](int world, int from, int to, bool in_one_unit) {
    Parameters result;
    run_torch_ranks(world, [&](Mesh mesh) {
      const auto model = build_seeded(7, gan_twin(in_one_unit).make);
      Engine engine(model, mesh);
      SGD discriminator(engine, {.momentum = 0.9, .parameters = under("discriminator")});
      AdamW generator(engine, {.parameters = under("generator")});
      if (from > 0) {
        load_weights(engine, folder / "weights");
        load_optimizer(discriminator, folder / "discriminator");
        load_optimizer(generator, folder / "generator");
        CHECK(discriminator.steps() == from);
        CHECK(generator.steps() == (from + 1) / 2);
      }
      for (int step = from; step < to; ++step) {
        // All ranks have the same batch. Its mean is exact if the world is a power of two.
        gan_loss(*model, step, 0, false).backward();
        if (step % 2 == 0) gan_loss(*model, step, 0, true).backward();
        discriminator.step();
        if (step % 2 == 0) generator.step();
        discriminator.zero_grad();
        generator.zero_grad();
      }
      if (from == 0) {
        save_weights(engine, folder / "weights");
        save_optimizer(discriminator, folder / "discriminator");
        save_optimizer(generator, folder / "generator");
      }
      auto parameters = full_parameters(engine);
      if (mesh.rank() == 0) result = std::move(parameters);
    });
    return result;
  };
  const Parameters whole = run(1, 0, 5, true);
  for (const auto& [saved_in, loaded_in] :
       {std::pair(true, true), std::pair(true, false), std::pair(false, true)}) {
    run(2, 0, 3, saved_in);
    for (const int world : {1, 4}) {
      CAPTURE(world);
      const Parameters resumed = run(world, 3, 5, loaded_in);
      check_bits(resumed, whole);
    }
  }
}

TEST_CASE("what was set of groups is in the optimizer's file by their names") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](Mesh mesh) {
    Parameters whole;
    {
      Trainee trainee(mesh);
      StepLR scheduler(trainee.optimizer, {.step_size = 1, .gamma = 0.5});
      trainee.step(0, mesh.rank());
      save_optimizer(trainee.optimizer, folder / "nothing-set");
      trainee.middle().set_lr(0.04);
      trainee.small().set_weight_decay(0.3);
      trainee.step(1, mesh.rank());
      scheduler.step();
      save_weights(trainee.engine, folder / "weights");
      save_optimizer(trainee.optimizer, folder / "set");
      trainee.step(2, mesh.rank());
      whole = full_parameters(trainee.engine);
    }
    const SafetensorsFile file(folder / "set");
    CHECK(SafetensorsFile(folder / "nothing-set").metadata().at("version") == "1");
    CHECK(file.metadata().at("version") == "2");
    CHECK(file.metadata().at("group.middle.lr") == "0.02");
    CHECK(file.metadata().at("group.middle.initial_lr") == "0.1");
    CHECK(file.metadata().at("group.group 2.weight_decay") == "0.3");
    {
      Trainee trainee(mesh);
      load_weights(trainee.engine, folder / "weights");
      load_optimizer(trainee.optimizer, folder / "set");
      CHECK(trainee.middle().lr() == 0.02);
      CHECK(trainee.small().lr() == 0.05);
      CHECK(trainee.small().weight_decay() == 0.3);
      trainee.step(2, mesh.rank());
      check_bits(full_parameters(trainee.engine), whole);
      // If a file has no settings of groups, loading it resets settings that were made before.
      load_optimizer(trainee.optimizer, folder / "nothing-set", {.beside_other_weights = true});
      CHECK(trainee.middle().lr() == 0.1);
      CHECK(trainee.small().weight_decay() == 0.0);
    }
    Trainee other(mesh, {{.match = under("u1"), .name = "second"}});
    load_weights(other.engine, folder / "weights");
    OptimizerReport report;
    const Outcome outcome = try_to_load_optimizer(other.optimizer, folder / "set", report);
    CHECK(outcome.failed());
    if (!outcome.mine) return;
    CHECK_THROWS_WITH_AS(std::rethrow_exception(outcome.mine),
                         doctest::Contains("the state has settings of group 'group 2', which the "
                                           "optimizer does not have"),
                         IoError);
  });
}
