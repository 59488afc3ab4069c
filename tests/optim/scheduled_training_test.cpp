// Tests schedulers in training: the steps that optimizers make, and errors if ranks differ.
#include <fsdp/lr_scheduler.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const Twin kScheduled = graph_twin(2, 6, in_a_row);
constexpr OneCycleLROptions kCycle{.max_lr = 0.05, .total_steps = 8};

using Parameters = std::map<std::string, at::Tensor>;

// Trains. `make` returns the function that is called after each backward.
template <class Make>
Parameters train(const Mesh& mesh, int steps, Make make) {
  const auto model = build_seeded(7, kScheduled.make);
  Engine engine(model, mesh);
  auto take_step = make(engine);
  for (int step = 0; step < steps; ++step) {
    graph_loss(*model, step, mesh.rank()).backward();
    take_step();
    engine.zero_grad();
  }
  return full_parameters(engine);
}

template <class Options>
auto& options_of(torch::optim::Optimizer& optimizer) {
  return static_cast<Options&>(optimizer.param_groups().front().options());
}

void check_close_to(const Parameters& a, const Parameters& b, double rtol, double atol) {
  REQUIRE(a.size() == b.size());
  for (const auto& [fqn, value] : a) {
    CAPTURE(fqn);
    CHECK(torch::allclose(value, b.at(fqn), rtol, atol));
  }
}

}  // namespace

// LibTorch's vector square root is not correctly rounded. So results may differ by an ulp for each
// step.
TEST_CASE("a beta1 that cycles gives torch::optim::AdamW's steps with that beta1") {
  run_torch_ranks(2, [](Mesh mesh) {
    std::vector<std::pair<double, double>> used;  // lr, beta1
    const Parameters ours = train(mesh, 8, [&](Engine& engine) {
      auto optimizer = std::make_shared<AdamW>(engine, AdamWOptions{.weight_decay = 0.1});
      auto scheduler = std::make_shared<OneCycleLR>(*optimizer, kCycle);
      return [&used, optimizer, scheduler] {
        used.emplace_back(optimizer->lr(), optimizer->momentum());
        optimizer->step();
        scheduler->step();
      };
    });
    CHECK(used[0].second == 0.95);
    CHECK(used[2].second < 0.9);
    size_t at = 0;
    const Parameters plain = train(mesh, 8, [&](Engine& engine) {
      auto optimizer = std::make_shared<torch::optim::AdamW>(
          engine.parameters(), torch::optim::AdamWOptions().weight_decay(0.1));
      return [&, optimizer] {
        options_of<torch::optim::AdamWOptions>(*optimizer).lr(used[at].first);
        options_of<torch::optim::AdamWOptions>(*optimizer).betas({used[at++].second, 0.999});
        optimizer->step();
      };
    });
    check_close_to(ours, plain, 1e-5, 2e-6);
  });
}

TEST_CASE("a momentum that cycles gives torch::optim::SGD's bits with that momentum") {
  run_torch_ranks(2, [](Mesh mesh) {
    std::vector<std::pair<double, double>> used;  // lr, momentum
    const Parameters ours = train(mesh, 8, [&](Engine& engine) {
      auto optimizer = std::make_shared<SGD>(engine, SgdOptions{.momentum = 0.9, .nesterov = true});
      auto scheduler = std::make_shared<OneCycleLR>(*optimizer, kCycle);
      return [&used, optimizer, scheduler] {
        used.emplace_back(optimizer->lr(), optimizer->momentum());
        optimizer->step();
        scheduler->step();
      };
    });
    size_t at = 0;
    const Parameters plain = train(mesh, 8, [&](Engine& engine) {
      auto optimizer = std::make_shared<torch::optim::SGD>(
          engine.parameters(), torch::optim::SGDOptions(1).momentum(0.9).nesterov(true));
      return [&, optimizer] {
        options_of<torch::optim::SGDOptions>(*optimizer).lr(used[at].first);
        options_of<torch::optim::SGDOptions>(*optimizer).momentum(used[at++].second);
        optimizer->step();
      };
    });
    for (const auto& [fqn, value] : ours) CHECK(bit_equal(value, plain.at(fqn)));
  });
}

TEST_CASE("LibTorch's schedulers serve LibTorch's optimizers on the shards") {
  const auto with_libtorch = [](std::vector<at::Tensor> tensors) {
    auto optimizer = std::make_shared<torch::optim::SGD>(std::move(tensors), 0.2);
    auto scheduler = std::make_shared<torch::optim::StepLR>(*optimizer, 1, 0.5);
    return [optimizer, scheduler] {
      optimizer->step();
      scheduler->step();
    };
  };
  const auto plain = build_seeded(7, kScheduled.make);
  const auto take_step = with_libtorch(plain->parameters());
  for (int step = 0; step < 4; ++step) {
    mean_gradients(*plain, 2, [&](int rank) { graph_loss(*plain, step, rank).backward(); });
    take_step();
  }
  const Parameters expected = plain_parameters(*plain);
  run_torch_ranks(2, [&](Mesh mesh) {
    const Parameters sharded =
        train(mesh, 4, [&](Engine& engine) { return with_libtorch(engine.parameters()); });
    for (const auto& [fqn, value] : sharded) CHECK(bit_equal(value, expected.at(fqn)));
    // step() of LibTorch's StepLR decays one call later than PyTorch's does.
    const Parameters ours = train(mesh, 4, [](Engine& engine) {
      auto optimizer = std::make_shared<SGD>(engine, SgdOptions{.lr = 0.2});
      auto scheduler =
          std::make_shared<StepLR>(*optimizer, StepLROptions{.step_size = 1, .gamma = 0.5});
      return [optimizer, scheduler, step = 0]() mutable {
        optimizer->step();
        if (step++ > 0) scheduler->step();
      };
    });
    for (const auto& [fqn, value] : ours) CHECK(bit_equal(value, expected.at(fqn)));
  });
}

TEST_CASE("ranks that give ReduceLROnPlateau different metrics are told both rates") {
  const auto errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        train(mesh, 4, [&](Engine& engine) {
          auto optimizer = std::make_shared<SGD>(engine, SgdOptions{.lr = 0.5});
          auto scheduler = std::make_shared<ReduceLROnPlateau>(
              *optimizer, ReduceLROnPlateauOptions{.patience = 0});
          return [&, optimizer, scheduler, metric = 1.0]() mutable {
            optimizer->step();
            scheduler->step(metric);
            metric += mesh.rank() == 0 ? -0.25 : 0.25;  // uses a local loss instead of mesh.mean's
          };
        });
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("'optimizer step 3: lr 0.5'") != std::string::npos);
    CHECK(error.find("'optimizer step 3: lr 0.05'") != std::string::npos);
  }
}

TEST_CASE("momenta that differ between ranks are an error that names both") {
  const auto errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        train(mesh, 2, [&](Engine& engine) {
          auto optimizer = std::make_shared<AdamW>(engine, AdamWOptions{.lr = 0.5});
          optimizer->set_momentum(mesh.rank() == 0 ? 0.75 : 0.875);
          return [optimizer] { optimizer->step(); };
        });
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("'optimizer step 1: lr 0.5, momentum 0.75'") != std::string::npos);
    CHECK(error.find("'optimizer step 1: lr 0.5, momentum 0.875'") != std::string::npos);
  }
}

TEST_CASE("a momentum that no step could use is refused, and the old one stays") {
  Unit<torch::nn::Linear> model(2, 2);
  Engine engine(model, Mesh::single());
  auto adamw = std::make_unique<AdamW>(engine, AdamWOptions{});
  for (const double wrong : {-0.1, 0.0, 1.0, std::nan("")}) {
    CHECK_THROWS_WITH_AS(adamw->set_momentum(wrong),
                         doctest::Contains("use a momentum (AdamW's beta1) between 0 and 1"),
                         InvalidArgument);
    CHECK(adamw->momentum() == 0.9);
  }
  adamw.reset();
  SGD without(engine, {});
  CHECK(without.momentum() == 0);
  const char* what =
      "without momentum; hint: construct the optimizer with SgdOptions::momentum above 0; if "
      "OneCycleLR";
  CHECK_THROWS_WITH_AS(without.set_momentum(0.9), doctest::Contains(what), InvalidArgument);
  CHECK_THROWS_WITH_AS(OneCycleLR(without, kCycle), doctest::Contains(what), InvalidArgument);
  OneCycleLROptions options = kCycle;
  options.cycle_momentum = false;
  const OneCycleLR scheduler(without, options);
  CHECK(without.lr() == doctest::Approx(0.05 / 25));
}
