// Tests two optimizers on one engine. Each has its own parameters. The reference is LibTorch's
// optimizers on lists of the same parameters.
#include <fsdp/loss_scaler.h>

#include "fsdp/error.h"
#include "optim/support/error_texts.h"
#include "optim/support/gan.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Parameters = std::map<std::string, at::Tensor>;
constexpr int kSteps = 4;

struct GanOptimizers {
  std::unique_ptr<Optimizer> discriminator, generator;
};
using MakeOptimizers = std::function<GanOptimizers(Engine&)>;

GanOptimizers make_sgds(Engine& engine) {
  return {.discriminator = std::make_unique<SGD>(
              engine, SgdOptions{.lr = 0.1, .momentum = 0.9, .parameters = under("discriminator")}),
          .generator = std::make_unique<SGD>(engine, SgdOptions{.lr = 0.2,
                                                                .momentum = 0.5,
                                                                .weight_decay = 0.01,
                                                                .parameters = under("generator")})};
}

GanOptimizers make_adamws(Engine& engine) {
  return {.discriminator = std::make_unique<AdamW>(
              engine, AdamWOptions{.lr = 1e-2, .parameters = under("discriminator")}),
          .generator = std::make_unique<AdamW>(
              engine, AdamWOptions{.lr = 2e-2, .beta1 = 0.5, .parameters = under("generator")})};
}

Parameters train(const MeshShape& shape, bool in_one_unit, const Options& options,
                 const MakeOptimizers& make) {
  Parameters result;
  run_torch_ranks(shape, [&](Mesh mesh) {
    const auto model = build_seeded(7, gan_twin(in_one_unit).make);
    Engine engine(model, mesh, options);
    const GanOptimizers optimizers = make(engine);
    for (int step = 0; step < kSteps; ++step) {
      for (const bool of_generator : {false, true}) {
        Optimizer& optimizer = of_generator ? *optimizers.generator : *optimizers.discriminator;
        optimizer.zero_grad();
        gan_loss(*model, step, mesh.rank(), of_generator).backward();
        CHECK_FALSE(optimizer.step().skipped());
      }
    }
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) result = std::move(parameters);
  });
  return result;
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& model, bool of_generator) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : model.named_parameters()) {
    if (is_of_generator(item.key()) == of_generator) tensors.push_back(item.value());
  }
  return tensors;
}

// `options(of_generator)` returns LibTorch's options for the generator or for the discriminator.
template <class TorchOptimizer, class MakeOptions>
Parameters train_plain_with(const MeshShape& shape, bool in_one_unit, const MakeOptions& options) {
  const auto model = build_seeded(7, gan_twin(in_one_unit).make);
  TorchOptimizer discriminator(tensors_of(*model, false), options(false));
  TorchOptimizer generator(tensors_of(*model, true), options(true));
  for (int step = 0; step < kSteps; ++step) {
    for (const bool of_generator : {false, true}) {
      const auto backward = [&](int rank) {
        gan_loss(*model, step, rank, of_generator).backward();
      };
      if (shape.has_two_axes()) {
        mean_gradients_by_groups(*model, shape, backward);
      } else {
        mean_gradients(*model, shape.size(Axis::kWorld), backward);
      }
      (of_generator ? generator : discriminator).step();
    }
  }
  return plain_parameters(*model);
}

struct Trainee {
  explicit Trainee(const Mesh& mesh, bool in_one_unit, const Options& options = {},
                   const MakeOptimizers& make = make_adamws)
      : model(build_seeded(7, gan_twin(in_one_unit).make)),
        engine(model, mesh, options),
        optimizers(make(engine)) {}
  // Runs backwards that give gradients to both networks.
  void backward(const Mesh& mesh, int step = 0) {
    const at::Tensor loss = gan_loss(*model, step, mesh.rank(), false);
    loss.backward();
    gan_loss(*model, step, mesh.rank(), true).backward();
  }
  std::shared_ptr<torch::nn::Module> model;
  Engine engine;
  GanOptimizers optimizers;
};

// Checks parameters after a step. `generator` and `discriminator` are true if the parameters of
// this network must have changed.
void check_changed(const Parameters& before, const Parameters& after, bool generator,
                   bool discriminator) {
  for (const auto& [fqn, value] : after) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, before.at(fqn)) != (is_of_generator(fqn) ? generator : discriminator));
  }
}

}  // namespace

TEST_CASE("a GAN in one model trains as by two of torch::optim's SGD, to the bit") {
  const auto options = [](bool of_generator) {
    return of_generator ? torch::optim::SGDOptions(0.2).momentum(0.5).weight_decay(0.01)
                        : torch::optim::SGDOptions(0.1).momentum(0.9);
  };
  for (const bool in_one_unit : {false, true}) {
    CAPTURE(in_one_unit);
    for (const MeshShape& shape :
         {MeshShape{1, 1}, MeshShape{1, 2}, MeshShape{1, 3}, MeshShape{2, 2}}) {
      CAPTURE(shape.replicate);
      CAPTURE(shape.shard);
      const Parameters plain = train_plain_with<torch::optim::SGD>(shape, in_one_unit, options);
      for (const Strategy strategy : kAllStrategies) {
        if (is_by_groups(strategy) != shape.has_two_axes()) continue;
        for (const bool offload : {false, true}) {
          CAPTURE(name_of(strategy));
          CAPTURE(offload);
          const Parameters ours =
              train(shape, in_one_unit, {.cpu_offload = offload, .strategy = strategy}, make_sgds);
          REQUIRE(ours.size() == plain.size());
          for (const auto& [fqn, value] : ours) {
            CAPTURE(fqn);
            CHECK(bit_equal(value, plain.at(fqn)));
          }
        }
      }
    }
  }
}

// LibTorch's vector square root is not correctly rounded. So results may differ by an ulp for each
// step.
TEST_CASE("a GAN in one model trains as by two of torch::optim's AdamW") {
  const auto options = [](bool of_generator) {
    return of_generator ? torch::optim::AdamWOptions(2e-2).betas({0.5, 0.999})
                        : torch::optim::AdamWOptions(1e-2);
  };
  for (const bool in_one_unit : {false, true}) {
    CAPTURE(in_one_unit);
    const Parameters plain =
        train_plain_with<torch::optim::AdamW>({.shard = 3}, in_one_unit, options);
    for (const Strategy strategy : kStrategies) {
      const Parameters ours = train({.shard = 3}, in_one_unit, {.strategy = strategy}, make_adamws);
      for (const auto& [fqn, value] : ours) {
        CAPTURE(fqn);
        CHECK(torch::allclose(value, plain.at(fqn), 1e-5, 2e-6));
      }
    }
  }
}

TEST_CASE("each optimizer clips, clears and counts its own parameters alone") {
  for (const bool in_one_unit : {false, true}) {
    CAPTURE(in_one_unit);
    run_torch_ranks(2, [&](Mesh mesh) {
      Trainee trainee(mesh, in_one_unit);
      Engine& engine = trainee.engine;
      const auto& [discriminator, generator] = trainee.optimizers;
      constexpr double kInf = std::numeric_limits<double>::infinity();
      const auto square = [](double norm) { return norm * norm; };
      trainee.backward(mesh);
      const double all = engine.measure_gradients().norm();
      const double of_generator = generator->clip_grad_norm(kInf).norm();
      const double of_discriminator = discriminator->clip_grad_norm(kInf).norm();
      CHECK(of_generator > 0);
      CHECK(of_discriminator > 0);
      CHECK(square(all) ==
            doctest::Approx(square(of_generator) + square(of_discriminator)).epsilon(1e-6));

      const Parameters before = full_parameters(engine);
      discriminator->zero_grad();
      CHECK(engine.measure_gradients().norm() == doctest::Approx(of_generator).epsilon(1e-6));
      // A parameter without a gradient gets no decay either.
      discriminator->step();
      check_changed(before, full_parameters(engine), false, false);
      generator->step();
      check_changed(before, full_parameters(engine), true, false);
      generator->zero_grad();
      CHECK(engine.stats().memory.in_use[MemoryCategory::kMainGradients] == 0);

      trainee.backward(mesh, 1);
      CHECK(discriminator->clip_grad_norm(0.01).norm() > 0.01);
      gan_loss(*trainee.model, 2, mesh.rank(), true).backward();
      CHECK_THROWS_WITH_AS(discriminator->step(), doctest::Contains(kAddedAfterClip), StateError);
    });
  }
}

TEST_CASE("gradients that wait under GradSync are cleared by each optimizer for its parameters") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto train = [&](bool waits) {
        Trainee trainee(mesh, /*in_one_unit=*/true, {.strategy = strategy});
        const auto& [discriminator, generator] = trainee.optimizers;
        if (waits) {
          const GradSync wait(trainee.engine, false);
          gan_loss(*trainee.model, 0, mesh.rank(), true).backward();
          CHECK_THROWS_AS(generator->step(), StateError);
          discriminator->zero_grad();
          generator->zero_grad();
          CHECK(trainee.engine.measure_gradients().norm() == 0);
          gan_loss(*trainee.model, 0, mesh.rank(), true).backward();
          generator->zero_grad();
        }
        gan_loss(*trainee.model, 1, mesh.rank(), true).backward();
        generator->step();
        return full_parameters(trainee.engine);
      };
      const Parameters waited = train(true), expected = train(false);
      for (const auto& [fqn, value] : waited) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
    });
  }
}

TEST_CASE("a step that is not finite skips its optimizer alone, and one scaler hears of both") {
  for (const bool in_one_unit : {false, true}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      Trainee trainee(mesh, in_one_unit);
      const auto& [discriminator, generator] = trainee.optimizers;
      LossScaler scaler(trainee.engine, {.init_scale = 8, .growth_interval = 2});
      const auto step = [&](bool overflows) {
        trainee.backward(mesh);
        for (ShardedParameter& each : trainee.engine.sharded_parameters()) {
          const bool here = overflows && is_of_generator(each.fqn) && mesh.rank() == 0;
          if (here && each.local.numel() > 0) each.local.mutable_grad()[0] = INFINITY;
        }
        const Parameters before = full_parameters(trainee.engine);
        const StepReport of_discriminator = discriminator->step(), of_generator = generator->step();
        CHECK_FALSE(of_discriminator.skipped());
        CHECK(of_generator.skipped() == overflows);
        if (overflows) CHECK(of_generator.gradients.first_nonfinite().find("generator") > 0);
        check_changed(before, full_parameters(trainee.engine), !overflows, true);
        scaler.update({of_discriminator, of_generator});
        discriminator->zero_grad();
        generator->zero_grad();
      };
      // This follows torch.amp.GradScaler with one update() after the steps of two optimizers.
      step(false);
      CHECK(scaler.state() == LossScaler::State{.scale = 8, .growth_tracker = 1});
      step(true);
      CHECK(scaler.state() == LossScaler::State{.scale = 4, .growth_tracker = 0});
      step(false);
      step(false);
      CHECK(scaler.state() == LossScaler::State{.scale = 8, .growth_tracker = 0});
      CHECK(discriminator->steps() == 4);
      CHECK(generator->steps() == 3);
    });
  }
}

TEST_CASE("a graph older than one optimizer's step goes back through what it did not step") {
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, gan_twin(/*in_one_unit=*/false).make);
    Engine engine(model, mesh, Options{});
    const GanOptimizers optimizers = make_sgds(engine);
    auto& gan = dynamic_cast<UnitImpl<GanImpl>&>(*model);
    const at::Tensor fake = gan.generator(values({4, 5}, 3));
    const at::Tensor judged = gan.discriminator(values({4, 7}, 4));
    judged.square().mean().backward();
    optimizers.discriminator->step();
    optimizers.discriminator->zero_grad();
    // The generator's graph is older than the step too.
    gan.discriminator(fake).square().mean().backward();
    const Parameters before = full_parameters(engine);
    CHECK_FALSE(optimizers.generator->step().skipped());
    check_changed(before, full_parameters(engine), true, false);
    // A graph is refused if it has read parameters that were stepped afterwards.
    const at::Tensor old = gan.discriminator(values({4, 7}, 4)).square().mean();
    optimizers.discriminator->step();
    CHECK_THROWS_WITH(old.backward(), doctest::Contains("modified by an inplace operation"));
  });
}

TEST_CASE("optimizers that share a parameter are refused, and those of none") {
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, gan_twin(/*in_one_unit=*/true).make);
    Engine engine(model, mesh, Options{});
    const auto bytes = [&] {
      return engine.stats().memory.in_use[MemoryCategory::kOptimizerState];
    };
    CHECK_THROWS_WITH_AS(
        AdamW(engine, {.parameters = under("gener")}),
        doctest::Contains("AdamW has no parameter to train (fsdp::AdamW); its `parameters` selects "
                          "no parameter of the engine; hint: compare `parameters` with the names"),
        InvalidArgument);
    const AdamW generator(engine, {.parameters = under("generator")});
    const int64_t before = bytes();
    CHECK_THROWS_WITH_AS(
        SGD(engine, {.parameters = under("generator.last")}),
        doctest::Contains(two_optimizers("generator.last.bias",
                                         "AdamW of 'generator' and SGD of 'generator.last'")
                              .c_str()),
        StateError);
    CHECK_THROWS_WITH_AS(AdamW(engine, {}),
                         doctest::Contains("two optimizers: AdamW of 'generator' and AdamW"),
                         StateError);
    CHECK(bytes() == before);
    const SGD discriminator(engine, {.parameters = under("discriminator")});
    CHECK(engine.describe().find("trained by AdamW of 'generator', SGD of 'discriminator'\n") !=
          std::string::npos);
  });
}

TEST_CASE("under() takes a module's name whole") {
  const auto matches = [](std::string module, std::string fqn) {
    return under(std::move(module))({.fqn = std::move(fqn), .shape = {}});
  };
  CHECK(matches("generator", "generator.weight"));
  CHECK(matches("generator", "generator.layers.0.weight"));
  CHECK(matches("generator.scale", "generator.scale"));
  CHECK(matches("", "scale"));
  CHECK_FALSE(matches("generator", "generator2.weight"));
  CHECK_FALSE(matches("generator", "my.generator.weight"));
  CHECK_FALSE(matches("generator", "gen"));
}

TEST_CASE("a trainable parameter of no optimizer is warned of at the first step, once") {
  std::vector<std::string> warnings;
  RunRanksOptions options = torch_ranks_options();
  options.mesh.on_event = [&](const MeshEvent& event) { warnings.push_back(event.text.what); };
  run_ranks(
      2,
      [](const Mesh& mesh) {
        const auto model = build_seeded(7, gan_twin(/*in_one_unit=*/false).make);
        for (auto& item : model->named_parameters()) {
          if (item.key() == "discriminator.first.weight") item.value().set_requires_grad(false);
        }
        Engine engine(model, mesh, Options{});
        SGD generator(engine, {.parameters = under("generator")});
        SGD gain(engine, {.parameters = under("discriminator.gain")});
        for (int step = 0; step < 2; ++step) {
          gan_loss(*model, step, mesh.rank(), true).backward();
          generator.step();
          gain.step();
          engine.zero_grad();
        }
      },
      options);
  CHECK(warnings == std::vector<std::string>{"no optimizer trains 'discriminator.first.bias' and "
                                             "2 more parameters that require a gradient"});
}

TEST_CASE("optimizers share the state's bytes, also those of one segment") {
  for (const bool in_one_unit : {false, true}) {
    run_torch_ranks(3, [&](Mesh mesh) {
      const auto model = build_seeded(7, gan_twin(in_one_unit).make);
      Engine engine(model, mesh, Options{});
      const auto bytes = [&] {
        CHECK(engine.memory_plan().rest == engine.stats().memory.in_use);
        return engine.stats().memory.in_use[MemoryCategory::kOptimizerState];
      };
      const int64_t main = engine.stats().memory.in_use[MemoryCategory::kMainShards];
      {
        const GanOptimizers optimizers = make_adamws(engine);
        const int64_t both = bytes();
        // If both share one segment, neither optimizer has state for the elements after its last
        // parameter.
        CHECK((in_one_unit ? both <= 2 * main : both == 2 * main));
        const int64_t least = in_one_unit ? 2 * main - 4 * 4 * ShardLayout::kAlignment : 0;
        CHECK(both >= least);
        CHECK(both > 0);
      }
      CHECK(bytes() == 0);
    });
  }
}
