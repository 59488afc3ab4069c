// Tests operators that users and LibTorch's optimizers call on Engine::parameters() and its
// `.grad`. An operator that would silently give wrong results must throw.
#include <torch/optim.h>

#include <sstream>

#include "engine/support/error_texts.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Trainee {
  explicit Trainee(const Mesh& mesh, Options options = {})
      : model(build_seeded(7, graph_twin(3, 48, in_a_row).make)),
        rank(mesh.rank()),
        engine(model, mesh, std::move(options)),
        parameters(engine.parameters()) {}
  at::Tensor loss(int step = 0) { return graph_loss(*model, step, rank); }

  std::shared_ptr<torch::nn::Module> model;
  int rank;
  Engine engine;
  std::vector<at::Tensor> parameters;
};

void check_refused(const std::function<void()>& call, const char* text) {
  CHECK_THROWS_WITH_AS(call(), doctest::Contains(text), StateError);
}

std::vector<std::unique_ptr<torch::optim::Optimizer>> element_wise(
    const std::vector<at::Tensor>& of) {
  namespace optim = torch::optim;
  std::vector<std::unique_ptr<optim::Optimizer>> all;
  all.push_back(std::make_unique<optim::SGD>(
      of, optim::SGDOptions(1e-2).momentum(0.9).nesterov(true).weight_decay(0.1)));
  all.push_back(
      std::make_unique<optim::Adam>(of, optim::AdamOptions(1e-2).amsgrad(true).weight_decay(0.1)));
  all.push_back(std::make_unique<optim::AdamW>(of, optim::AdamWOptions(1e-2).amsgrad(true)));
  all.push_back(std::make_unique<optim::RMSprop>(
      of, optim::RMSpropOptions(1e-3).momentum(0.9).centered(true).weight_decay(0.1)));
  all.push_back(
      std::make_unique<optim::Adagrad>(of, optim::AdagradOptions(1e-2).weight_decay(0.1)));
  return all;
}

}  // namespace

TEST_CASE("LibTorch's clip_grad_norm_ over shards is refused, by every norm, before it clips") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh);
    trainee.loss().backward();
    const double norm = trainee.engine.measure_gradients().norm();
    // On an empty shard, LibTorch's own error for the last norm type is thrown first.
    const bool any_empty =
        std::ranges::any_of(trainee.parameters, [](const auto& each) { return each.numel() == 0; });
    for (const double type : {2.0, 1.0, double{INFINITY}}) {
      if (any_empty && type == INFINITY) continue;
      check_refused(
          [&] { torch::nn::utils::clip_grad_norm_(trainee.parameters, 1e-3, type); },
          "clip with Engine::clip_grad_norm instead of torch::nn::utils::clip_grad_norm_");
    }
    CHECK(trainee.engine.measure_gradients().norm() == norm);
    torch::nn::utils::clip_grad_value_(trainee.parameters, 1e9);  // computes no number
    CHECK(trainee.engine.clip_grad_norm(norm / 2).norm() == norm);
    CHECK(trainee.engine.measure_gradients().norm() == doctest::Approx(norm / 2));
  });
}

TEST_CASE("numbers of a shard are refused on every rank, those without elements too") {
  run_torch_ranks(3, [](Mesh mesh) {
    Trainee trainee(mesh);
    trainee.loss().backward();
    const auto numbers = [](const at::Tensor& shard) {
      const std::vector<std::function<void()>> made{
          [&] { shard.norm(); },
          [&] { at::linalg_vector_norm(shard); },
          [&] { at::dot(shard, shard); },
          [&] { shard.sum(); },
          [&] { shard.mean(); },
          [&] { shard.pow(2).sum(); },
          [&] { at::isfinite(shard).all(); },
          [&] {
            at::cat({shard, shard}).norm();
          },
          [&] { shard.to(at::kDouble).norm(); },
          [&] {
            at::_foreach_norm({shard, shard});
          },
          [&] {
            at::_foreach_norm(at::_foreach_mul({shard, shard}, 2));
          },
          [&] {
            at::Tensor out = at::empty({});
            at::sum_out(out, shard, at::IntArrayRef{});
          }};
      for (const auto& make : made) check_refused(make, "computes a number from a shard");
      if (shard.numel() > 0) {
        check_refused([&] { shard.abs().max(); }, "'aten::max' computes a number from a shard");
        check_refused([&] { shard[0].item<float>(); }, "'aten::item' computes a number");
      }
    };
    for (const at::Tensor& shard : trainee.parameters) {
      numbers(shard.detach());
      numbers(shard.grad());
    }
  });
}

TEST_CASE("views, comparisons, elements, copies and prints of shards are anybody's") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh);
    trainee.loss().backward();
    for (const at::Tensor& shard : trainee.parameters) {
      const at::Tensor gradient = shard.grad();
      CHECK(torch::equal(gradient, gradient.clone()));
      CHECK(torch::allclose(gradient.view({-1}), gradient * 1));
      CHECK(std::isfinite(gradient.clone().norm().item<double>()));
      CHECK(gradient.index_select(0, at::arange(shard.numel() / 2, at::kLong)).numel() ==
            shard.numel() / 2);
      at::Tensor own = at::zeros_like(gradient);
      own.copy_(gradient);
      own.add_(gradient, -1);
      CHECK(own.abs().sum().item<double>() == 0);
      std::ostringstream text;
      text << gradient << shard.detach();
      CHECK(text.str().find("CPUFloatType") != std::string::npos);
    }
  });
}

TEST_CASE("one rank, and replicated shards, may be measured by anybody") {
  for (const auto& [world, strategy] :
       {std::pair{1, Strategy::kFullShard}, std::pair{2, Strategy::kReplicate}}) {
    run_torch_ranks(world, [strategy = strategy](Mesh mesh) {
      Trainee trainee(mesh, {.strategy = strategy});
      trainee.loss().backward();
      const double norm = trainee.engine.measure_gradients().norm();
      CHECK(torch::nn::utils::clip_grad_norm_(trainee.parameters, 1e9) == doctest::Approx(norm));
    });
  }
}

TEST_CASE("LBFGS ends at its first step; LibTorch's element-wise optimizers go on") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh);
    const std::vector<at::Tensor> before = [&] {
      std::vector<at::Tensor> values;
      for (const at::Tensor& each : trainee.parameters) values.push_back(each.detach().clone());
      return values;
    }();
    torch::optim::LBFGS lbfgs(trainee.parameters);
    check_refused(
        [&] {
          lbfgs.step([&] {
            at::Tensor loss = trainee.loss();
            loss.backward();
            return loss;
          });
        },
        "do not use optimizers that compute such numbers (LBFGS)");
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK(torch::equal(trainee.parameters[i].detach(), before[i]));
    }
    for (const auto& optimizer : element_wise(trainee.parameters)) {
      for (int step = 0; step < 2; ++step) {
        optimizer->zero_grad(/*set_to_none=*/step == 0);
        trainee.loss(step).backward();
        optimizer->step();
      }
      optimizer->zero_grad();
    }
  });
}

TEST_CASE("LibTorch's optimizers are refused while gradients wait under GradSync") {
  for (const int world : {2, 3}) {
    run_torch_ranks(world, [](Mesh mesh) {
      Trainee trainee(mesh);
      for (const auto& optimizer : element_wise(trainee.parameters)) {
        {
          const GradSync keep(trainee.engine, false);
          trainee.loss().backward();
        }
        check_refused([&] { optimizer->step(); }, "cannot step while gradients wait to be reduced");
        check_refused([&] { torch::nn::utils::clip_grad_value_(trainee.parameters, 1.0); },
                      "cannot step while gradients wait to be reduced");
        trainee.loss(1).backward();  // and reduces both
        optimizer->step();
        {
          const GradSync keep(trainee.engine, false);
          trainee.loss(2).backward();  // beside gradients that are reduced
        }
        check_refused([&] { optimizer->step(); }, "cannot step while gradients wait to be reduced");
        optimizer->zero_grad();
        CHECK(trainee.engine.measure_gradients().norm() == 0);
      }
    });
  }
}

TEST_CASE("LibTorch's zero_grad hands back what waits under GradSync, as the engine's does") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh);
    torch::optim::SGD optimizer(trainee.parameters, 0.1);
    trainee.loss().backward();
    const double once = trainee.engine.measure_gradients().norm();
    optimizer.zero_grad();
    {
      const GradSync keep(trainee.engine, false);
      trainee.loss(1).backward();
    }
    optimizer.zero_grad();
    trainee.loss().backward();
    CHECK(trainee.engine.measure_gradients().norm() == once);
    optimizer.zero_grad();
    {
      const GradSync keep(trainee.engine, false);
      trainee.loss(1).backward();
    }
    trainee.parameters[0].mutable_grad().reset();
    check_refused([&] { trainee.loss().backward(); },
                  "only some gradients of the unit were cleared");
    trainee.engine.zero_grad();
    trainee.loss().backward();
    CHECK(trainee.engine.measure_gradients().norm() == once);
  });
}

TEST_CASE("tensors of parameters() that are taken while gradients wait are guarded, too") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(2, 48, in_a_row).make);
    Engine engine(model, mesh, {});
    {
      const GradSync keep(engine, false);
      graph_loss(*model, 0, mesh.rank()).backward();
    }
    torch::optim::AdamW optimizer(engine.parameters(), 0.1);
    check_refused([&] { optimizer.step(); }, "cannot step while gradients wait to be reduced");
    CHECK_THROWS_WITH(engine.parameters()[0].grad().const_data_ptr(),
                      doctest::Contains("wait to be reduced"));
  });
}

TEST_CASE("LibTorch's optimizers are refused where sums over groups wait") {
  run_torch_ranks(MeshShape{.replicate = 2, .shard = 2}, [](Mesh mesh) {
    Trainee trainee(mesh, {.strategy = Strategy::kHybridShard});
    torch::optim::SGD optimizer(trainee.parameters, 0.1);
    {
      const GradSync inside(trainee.engine, GradientSync::kInside);
      trainee.loss().backward();
    }
    check_refused([&] { optimizer.step(); }, "wait to be summed over groups of ranks");
    for (const at::Tensor& each : trainee.parameters) CHECK_NOTHROW(each.grad().mul_(0.5));
    trainee.loss(1).backward();
    optimizer.step();
  });
}

TEST_CASE("LibTorch's step and zero_grad inside a backward, a forward or Gathered are refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    std::function<void()> in_forward = [] {}, in_backward = [] {};
    const auto model = build_seeded(7, graph_twin(2, 48, [&](GraphImpl& g, const at::Tensor& x) {
                                         const at::Tensor h = torch::tanh(g.units[0](x));
                                         h.register_hook([&](at::Tensor) { in_backward(); });
                                         in_forward();
                                         return g.norm(g.units[1](h));
                                       }).make);
    Engine engine(model, mesh, {});
    torch::optim::SGD optimizer(engine.parameters(), 0.1);
    graph_loss(*model, 0, mesh.rank()).backward();
    const auto refuse = [&](const char* where) {
      return [&optimizer, where] {
        check_refused([&] { optimizer.step(); }, where);
        check_refused([&] { optimizer.zero_grad(); }, where);
      };
    };
    in_forward = refuse("inside a forward");
    in_backward = refuse("inside a backward");
    graph_loss(*model, 1, mesh.rank()).backward();
    in_forward = in_backward = [] {};
    {
      const Gathered whole(engine, WriteBack::kOwnSlice);
      check_refused([&] { optimizer.step(); }, ("on main shards" + kWhileGathered).c_str());
    }
    optimizer.step();
  });
}

TEST_CASE("a LibTorch step after a backward that failed, whose gradients are mixed, is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    bool fails = false;
    const auto model = build_seeded(7, graph_twin(2, 48, [&](GraphImpl& g, const at::Tensor& x) {
                                         const at::Tensor h = torch::tanh(g.units[0](x));
                                         h.register_hook([&](at::Tensor) {
                                           if (fails) throw std::runtime_error("by the test");
                                         });
                                         return g.norm(g.units[1](h));
                                       }).make);
    Engine engine(model, mesh, {});
    torch::optim::SGD optimizer(engine.parameters(), 0.1);
    graph_loss(*model, 0, mesh.rank()).backward();
    fails = true;
    CHECK_THROWS_WITH(graph_loss(*model, 1, mesh.rank()).backward(), "by the test");
    check_refused([&] { optimizer.step(); }, "gradients of a failed backward are mixed");
    optimizer.zero_grad();
    fails = false;
    graph_loss(*model, 1, mesh.rank()).backward();
    optimizer.step();
  });
}
