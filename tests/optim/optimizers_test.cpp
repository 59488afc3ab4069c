// Tests AdamW and SGD on flat shards against torch::optim, on the same shards and plain models.
#include <fsdp/optim.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Parameters = std::map<std::string, at::Tensor>;
// A function that returns a step function. The step function is called after each backward.
using MakeStep = std::function<std::function<void(int step)>(Engine&)>;
using MakePlainStep = std::function<std::function<void(int step)>(torch::nn::Module&)>;

constexpr int kSteps = 5;

Parameters train(int world, const Twin& twin, const MakeStep& make, const Options& options = {}) {
  Parameters result;
  run_torch_ranks(world, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, options);
    const auto take_step = make(engine);
    for (int step = 0; step < kSteps; ++step) {
      twin.loss(*model, step, mesh.rank()).backward();
      take_step(step);
    }
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) result = std::move(parameters);
  });
  return result;
}

Parameters train_plain_with(int world, const Twin& twin, const MakePlainStep& make) {
  const auto model = build_seeded(7, twin.make);
  const auto take_step = make(*model);
  for (int step = 0; step < kSteps; ++step) {
    mean_gradients(*model, world, [&](int rank) { twin.loss(*model, step, rank).backward(); });
    take_step(step);
  }
  return plain_parameters(*model);
}

// Parameters with at most one dimension have no decay and twice the learning rate.
std::vector<torch::optim::OptimizerParamGroup> split_groups(
    const std::vector<std::pair<at::Tensor, bool>>& tensors,
    const std::function<std::unique_ptr<torch::optim::OptimizerOptions>(bool small)>& options) {
  std::vector<at::Tensor> large, small;
  for (const auto& [tensor, is_small] : tensors) (is_small ? small : large).push_back(tensor);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(large, options(false));
  groups.emplace_back(small, options(true));
  return groups;
}

std::vector<std::pair<at::Tensor, bool>> tensors_of(Engine& engine) {
  std::vector<std::pair<at::Tensor, bool>> tensors;
  for (const ShardedParameter& each : engine.sharded_parameters()) {
    tensors.emplace_back(each.local, is_bias_or_norm(each));
  }
  return tensors;
}
std::vector<std::pair<at::Tensor, bool>> tensors_of(torch::nn::Module& module) {
  std::vector<std::pair<at::Tensor, bool>> tensors;
  for (const at::Tensor& each : module.parameters()) tensors.emplace_back(each, each.dim() <= 1);
  return tensors;
}

std::unique_ptr<torch::optim::OptimizerOptions> torch_adamw(bool small) {
  return std::make_unique<torch::optim::AdamWOptions>(
      torch::optim::AdamWOptions(small ? 2e-2 : 1e-2)
          .betas({0.8, 0.95})
          .eps(1e-6)
          .weight_decay(small ? 0.0 : 0.1));
}

const Twin kTwin = graph_twin(3, 9, in_a_row);
const std::vector<ParameterGroup> kGroups = {
    {.match = is_bias_or_norm, .weight_decay = 0.0, .lr_scale = 2.0}};

template <class Optimizer>
MakeStep ours(auto options, double clip = 0, double norm_type = 2.0) {
  return [=](Engine& engine) {
    auto optimizer = std::make_shared<Optimizer>(engine, options);
    return [=](int) {
      if (clip > 0) optimizer->clip_grad_norm(clip, norm_type);
      CHECK_FALSE(optimizer->step().skipped());
      optimizer->zero_grad();
    };
  };
}

void check_near(const Parameters& a, const Parameters& b, double rtol, double atol) {
  REQUIRE(a.size() == b.size());
  for (const auto& [fqn, value] : a) {
    CAPTURE(fqn);
    CAPTURE((value - b.at(fqn)).abs().max().item<float>());
    CHECK(torch::allclose(value, b.at(fqn), rtol, atol));
  }
}

void check_bits(const Parameters& a, const Parameters& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [fqn, value] : a) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, b.at(fqn)));
  }
}

constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

// LibTorch's vector square root is not correctly rounded, so parameters may differ by an ulp a
// step.
TEST_CASE(
    "AdamW with decay groups equals torch::optim::AdamW on the shards and on the plain model") {
  const AdamWOptions options{
      .lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .groups = kGroups};
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const Parameters sharded = train(world, kTwin, ours<AdamW>(options));
    check_near(sharded,
               train(world, kTwin,
                     [](Engine& engine) {
                       auto optimizer = std::make_shared<torch::optim::AdamW>(
                           split_groups(tensors_of(engine), torch_adamw));
                       return [=](int) {
                         optimizer->step();
                         optimizer->zero_grad();
                       };
                     }),
               1e-5, 2e-6);
    check_near(sharded,
               train_plain_with(world, kTwin,
                                [](torch::nn::Module& module) {
                                  auto optimizer = std::make_shared<torch::optim::AdamW>(
                                      split_groups(tensors_of(module), torch_adamw));
                                  return [=](int) { optimizer->step(); };
                                }),
               1e-5, 2e-6);
    for (const Strategy strategy : kStrategies) {
      CAPTURE(static_cast<int>(strategy));
      check_bits(sharded, train(world, kTwin, ours<AdamW>(options), {.strategy = strategy}));
    }
  }
}

TEST_CASE("SGD with momentum, Nesterov's too, gives torch::optim::SGD's bits") {
  for (const int world : {1, 2, 3}) {
    for (const bool nesterov : {false, true}) {
      CAPTURE(world);
      CAPTURE(nesterov);
      const double dampening = nesterov ? 0.0 : 0.1;
      const SgdOptions options{.lr = 0.1,
                               .momentum = 0.9,
                               .dampening = dampening,
                               .weight_decay = 0.01,
                               .nesterov = nesterov,
                               .groups = kGroups};
      const auto torch_sgd = [=](bool small) {
        return std::make_unique<torch::optim::SGDOptions>(
            torch::optim::SGDOptions(small ? 0.2 : 0.1)
                .momentum(0.9)
                .dampening(dampening)
                .weight_decay(small ? 0.0 : 0.01)
                .nesterov(nesterov));
      };
      const Parameters sharded = train(world, kTwin, ours<SGD>(options));
      check_bits(sharded, train_plain_with(world, kTwin, [&](torch::nn::Module& module) {
                   auto optimizer = std::make_shared<torch::optim::SGD>(
                       split_groups(tensors_of(module), torch_sgd), torch::optim::SGDOptions(0.1));
                   return [=](int) { optimizer->step(); };
                 }));
    }
  }
}

TEST_CASE("clipping by norm 1, 2 and infinity equals torch's clip_grad_norm_") {
  for (const int world : {1, 2, 3}) {
    for (const double type : {1.0, 2.0, kInf}) {
      CAPTURE(world);
      CAPTURE(type);
      const double max_norm = type == 1.0 ? 0.5 : 0.05;  // low enough that gradients are clipped
      std::vector<double> norms;
      const Parameters plain = train_plain_with(world, kTwin, [&](torch::nn::Module& module) {
        auto optimizer = std::make_shared<torch::optim::SGD>(module.parameters(), 0.1);
        return [&, optimizer](int) {
          norms.push_back(torch::nn::utils::clip_grad_norm_(module.parameters(), max_norm, type));
          optimizer->step();
        };
      });
      const auto step_of = [&](Engine& engine) {
        auto optimizer = std::make_shared<SGD>(engine, SgdOptions{.lr = 0.1});
        return [&, optimizer](int step) {
          const double norm = optimizer->clip_grad_norm(max_norm, type).norm();
          CHECK(norm == doctest::Approx(norms[step]).epsilon(1e-5));
          CHECK(norm > max_norm);
          CHECK(optimizer->step().gradients.norm() == norm);
          optimizer->zero_grad();
        };
      };
      for (const Strategy strategy : kStrategies) {
        check_near(train(world, kTwin, step_of, {.strategy = strategy}), plain, 1.3e-6, 1e-6);
      }
      // Engine::clip_grad_norm does the same for the optimizers of torch.
      check_near(train(world, kTwin,
                       [&](Engine& engine) {
                         auto optimizer = std::make_shared<torch::optim::SGD>(
                             engine.parameters(), torch::optim::SGDOptions(0.1));
                         return [&, optimizer](int step) {
                           CHECK(engine.clip_grad_norm(max_norm, type).norm() ==
                                 doctest::Approx(norms[step]).epsilon(1e-5));
                           optimizer->step();
                           optimizer->zero_grad();
                         };
                       }),
                 plain, 1.3e-6, 1e-6);
    }
  }
}

TEST_CASE("a limit that is negative or no number is refused before anything is issued") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, kTwin.make);
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.1});
    for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
      CHECK_THROWS_WITH_AS(optimizer.clip_grad_norm(bad),
                           doctest::Contains("clip_grad_norm: max_norm is"), InvalidArgument);
      CHECK_THROWS_AS(engine.clip_grad_norm(bad), InvalidArgument);
    }
  });
}

TEST_CASE("a norm below the limit changes nothing, to the bit") {
  check_bits(train(2, kTwin, ours<SGD>(SgdOptions{.lr = 0.1}, 1e6)),
             train(2, kTwin, ours<SGD>(SgdOptions{.lr = 0.1})));
}

TEST_CASE("one rank's non-finite gradient makes all ranks skip, and all can name it") {
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 3}) {
      for (const bool clips : {false, true}) {
        for (const float bad :
             {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
          run_torch_ranks(world, [&](Mesh mesh) {
            const auto model = build_seeded(7, kTwin.make);
            Engine engine(model, mesh, {.strategy = strategy});
            AdamW optimizer(engine, {.lr = 1e-2});
            const auto before = full_parameters(engine);
            graph_loss(*model, 0, mesh.rank()).backward();
            // u2.bias is at the end of its unit, so the last ranks own it.
            for (ShardedParameter& each : engine.sharded_parameters()) {
              const bool whole = strategy == Strategy::kReplicate;
              const bool here = whole || mesh.rank() == world - 1;
              if (each.fqn == "u2.bias" && here && each.local.numel() > 0) {
                each.local.mutable_grad()[0] = bad;
              }
            }
            if (clips) optimizer.clip_grad_norm(1.0);
            const StepReport report = optimizer.step();
            CHECK(report.skipped());
            CHECK_FALSE(report.gradients.finite());
            CHECK(report.gradients.first_nonfinite() == "unit 'u2', parameter 'u2.bias'");
            CHECK(optimizer.steps() == 0);
            check_bits(full_parameters(engine), before);
            optimizer.zero_grad();
            graph_loss(*model, 0, mesh.rank()).backward();
            CHECK_FALSE(optimizer.step().skipped());
            CHECK(optimizer.steps() == 1);
          });
        }
      }
    }
  }
}

TEST_CASE("a unit that no backward touched is neither decayed nor counted") {
  Twin twin = graph_twin(3, 6, [](GraphImpl& g, const at::Tensor& x) {
    at::Tensor h = torch::tanh(g.units[0](x));
    if (g.step % 2 == 1) h = torch::tanh(g.units[1](h));
    return g.norm(g.units[2](h));
  });
  const AdamWOptions options{.lr = 1e-2, .weight_decay = 0.5};
  check_near(train(2, twin, ours<AdamW>(options)),
             train(2, twin,
                   [](Engine& engine) {
                     auto optimizer = std::make_shared<torch::optim::AdamW>(
                         engine.parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.5));
                     return [=](int) {
                       optimizer->step();
                       optimizer->zero_grad();
                     };
                   }),
             1e-5, 2e-6);
}

TEST_CASE("a parameter frozen after construction keeps its value and its moments' count") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, kTwin.make);
    Engine engine(model, mesh, {});
    AdamW optimizer(engine, {.lr = 1e-2, .weight_decay = 0.5});
    graph_loss(*model, 0, mesh.rank()).backward();
    optimizer.step();
    optimizer.zero_grad();
    model->named_parameters()["u1.weight"].set_requires_grad(false);
    const auto before = full_parameters(engine);
    graph_loss(*model, 1, mesh.rank()).backward();
    optimizer.step();
    const auto after = full_parameters(engine);
    CHECK(bit_equal(after.at("u1.weight"), before.at("u1.weight")));
    CHECK_FALSE(bit_equal(after.at("u1.bias"), before.at("u1.bias")));
  });
}

TEST_CASE("the optimizer writes the resident bfloat16 copies in its own pass") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Graph>(2, 9, in_a_row); });
      Engine engine(
          model, mesh,
          {.mixed_precision = {.param_dtype = torch::kBFloat16}, .strategy = Strategy::kReplicate});
      AdamW optimizer(engine, {.lr = 1e-2});
      for (int step = 0; step < 3; ++step) {
        graph_loss(*model, step, mesh.rank()).backward();
        optimizer.step();
        optimizer.zero_grad();
        const Gathered whole(engine);
        for (const ShardedParameter& each : engine.sharded_parameters()) {
          CAPTURE(each.fqn);
          const at::Tensor bound = model->named_parameters()[each.fqn].detach().flatten();
          CHECK((bound.scalar_type() == torch::kBFloat16));
          CHECK(bit_equal(bound, each.local.detach().to(torch::kBFloat16)));
        }
      }
    });
  }
}

TEST_CASE("a schedule followed through set_lr gives torch's bits at the same rates") {
  const LrSchedule linear{.shape = LrSchedule::Shape::kLinear, .warmup_steps = 2, .total_steps = 6};
  const auto scheduled = train(2, kTwin, [&](Engine& engine) {
    auto optimizer = std::make_shared<SGD>(engine, SgdOptions{.lr = 0.5});
    return [=](int step) {
      optimizer->set_lr(0.5 * linear.factor(step));
      CHECK(optimizer->lr() == 0.5 * linear.factor(step));
      optimizer->step();
      optimizer->zero_grad();
    };
  });
  check_bits(scheduled, train_plain_with(2, kTwin, [&](torch::nn::Module& module) {
               auto optimizer = std::make_shared<torch::optim::SGD>(module.parameters(), 0.5);
               return [=](int step) {
                 optimizer->param_groups()[0].options().set_lr(0.5 * linear.factor(step));
                 optimizer->step();
               };
             }));
}

TEST_CASE("optimizer state is counted by the engine and given back") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, kTwin.make);
    Engine engine(model, mesh, {});
    const int64_t main = engine.stats().memory.in_use[MemoryCategory::kMainShards];
    const auto check_counted = [&](int64_t bytes) {
      CHECK(engine.stats().memory.in_use[MemoryCategory::kOptimizerState] == bytes);
      CHECK(engine.memory_plan().rest == engine.stats().memory.in_use);
    };
    {
      const AdamW adamw(engine, {});
      check_counted(2 * main);
    }
    {
      const SGD momentum(engine, {.momentum = 0.9});
      check_counted(main);
    }
    const SGD plain(engine, {});
    check_counted(0);
  });
}

TEST_CASE("options that no optimizer can have are refused by name") {
  run_torch_ranks(1, [](Mesh mesh) {
    const auto model = build_seeded(7, kTwin.make);
    Engine engine(model, mesh, {});
    CHECK_THROWS_WITH_AS(AdamW(engine, {.lr = -1}), doctest::Contains("AdamW: lr is -1"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(AdamW(engine, {.beta2 = 1.0}), doctest::Contains("AdamW: beta2 is 1"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(AdamW(engine, {.eps = std::nan("")}), doctest::Contains("AdamW: eps is"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(SGD(engine, {.nesterov = true}),
                         doctest::Contains("for nesterov set momentum above 0 and dampening to 0"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(engine.measure_gradients(3.0),
                         doctest::Contains("norm_type 3 is not supported"), InvalidArgument);
  });
}
