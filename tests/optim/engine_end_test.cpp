// Tests objects that outlive the engine, and calls of an optimizer at a wrong time.
#include <fsdp/optim.h>

#include <thread>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("shards, gradients and optimizers that outlive the engine keep their memory") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(3, 48, in_a_row).make);
      auto engine = std::make_unique<Engine>(model, std::move(mesh), Options{});
      AdamW optimizer(*engine, {.lr = 1e-2});
      torch::optim::SGD plain(engine->parameters(), torch::optim::SGDOptions(0.1));
      graph_loss(*model, 0, engine->mesh().rank()).backward();
      const std::vector<ShardedParameter> shards = engine->sharded_parameters();
      std::vector<at::Tensor> values, gradients;
      for (const ShardedParameter& each : shards) {
        values.push_back(each.local.detach().clone());
        gradients.push_back(each.local.grad());
      }
      engine.reset();
      for (size_t i = 0; i < shards.size(); ++i) {
        CHECK(torch::equal(shards[i].local.detach(), values[i]));
        gradients[i].zero_();  // its memory still exists
      }
      plain.step();  // without gradients, this does nothing
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { optimizer.step(); }, [&] { optimizer.zero_grad(); },
               [&] { optimizer.clip_grad_norm(1.0); }}) {
        CHECK_THROWS_WITH_AS(call(), doctest::Contains("after the engine was destroyed"),
                             StateError);
      }
      CHECK_THROWS_WITH(model->parameters()[0].sum().item(),
                        doctest::Contains("cannot be read: the engine was destroyed"));
    });
  }
}

TEST_CASE("a step inside a forward, a backward or Gathered is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    std::function<void()> in_backward;
    const auto model = build_seeded(7, graph_twin(2, 6, [&](GraphImpl& g, const at::Tensor& x) {
                                         const at::Tensor h = torch::tanh(g.units[0](x));
                                         h.register_hook([&](at::Tensor) { in_backward(); });
                                         return g.norm(g.units[1](h));
                                       }).make);
    Engine engine(model, mesh, {});
    SGD optimizer(engine, {.lr = 0.1});
    const auto refused = [&](const char* where) {
      CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains(where), StateError);
    };
    in_backward = [&] { refused("an optimizer's step is not allowed inside a backward"); };
    graph_loss(*model, 0, mesh.rank()).backward();
    {
      const Gathered whole(engine);
      refused("an optimizer's step is not allowed while parameters are gathered");
    }
    optimizer.step();
    CHECK(optimizer.steps() == 1);
  });
}

TEST_CASE("unfrozen parameters begin with moments of zero, as in torch::optim") {
  const auto make = [] {
    Unit<Graph> model(3, 6, in_a_row);
    model->units[1]->weight.set_requires_grad(false);
    return model.ptr();
  };
  const auto thaw = [](torch::nn::Module& model) {
    dynamic_cast<GraphImpl&>(model).units[1]->weight.set_requires_grad(true);
  };
  const int world = 2;
  const auto plain = build_seeded(7, make);
  torch::optim::AdamW reference(plain->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    if (step == 2) thaw(*plain);
    mean_gradients(*plain, world, [&](int rank) { graph_loss(*plain, step, rank).backward(); });
    for (const at::Tensor& each : plain->parameters()) {
      if (!each.requires_grad()) each.mutable_grad() = at::Tensor();
    }
    reference.step();
  }
  const auto expected = plain_parameters(*plain);
  run_torch_ranks(world, [&](Mesh mesh) {
    const auto model = build_seeded(7, make);
    Engine engine(model, mesh, {});
    AdamW optimizer(engine, {.lr = 1e-2});
    for (int step = 0; step < 5; ++step) {
      if (step == 2) thaw(*model);
      graph_loss(*model, step, mesh.rank()).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& [fqn, value] : full_parameters(engine)) {
      CAPTURE(fqn);
      CHECK(torch::allclose(value, expected.at(fqn), 1e-5, 1e-6));
    }
  });
}

TEST_CASE("reports are read when they are asked, by any thread, and outlive the engine") {
  run_torch_ranks(2, [](Mesh mesh) {
    std::vector<StepReport> reports;
    std::vector<double> norms;
    {
      const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
      Engine engine(model, mesh, {});
      SGD optimizer(engine, {.lr = 0.1});
      for (int step = 0; step < 4; ++step) {
        graph_loss(*model, step, mesh.rank()).backward();
        const GradientReport clipped = optimizer.clip_grad_norm(1.0);
        reports.push_back(optimizer.step());
        if (step % 2 == 0) {
          std::thread reader([&] { norms.push_back(clipped.norm()); });
          CHECK_FALSE(reports.back().skipped());
          reader.join();
        } else {
          norms.push_back(engine.measure_gradients().norm());
        }
        optimizer.zero_grad();
      }
    }
    for (size_t step = 0; step < reports.size(); ++step) {
      CHECK(reports[step].gradients.norm() == norms[step]);
      CHECK(reports[step].gradients.first_nonfinite().empty());
    }
    CHECK(StepReport().gradients.norm() == 0);
  });
}

TEST_CASE(
    "ranks whose learning rates differ, or of which one clips, hear of it at the next collective") {
  for (const bool clips : {false, true}) {
    for (const bool skips : {false, true}) {
      const auto errors = errors_of_ranks(
          3,
          [&](Mesh mesh) {
            const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
            Engine engine(model, mesh, {});
            SGD optimizer(engine, {.lr = 0.1, .skip_nonfinite = skips});
            if (!clips && mesh.rank() == 1) optimizer.set_lr(0.2);
            for (int step = 0; step < 2; ++step) {
              graph_loss(*model, step, mesh.rank()).backward();
              if (clips && mesh.rank() == 2) optimizer.clip_grad_norm(0.01);
              optimizer.step();
              optimizer.zero_grad();
            }
          },
          torch_ranks_options());
      const std::string expected = clips ? "clip_grad_norm(0.01, 2)" : "lr 0.2'";
      for (const std::string& error : errors) {
        CAPTURE(error);
        CHECK(error.find("ranks disagree") != std::string::npos);
        CHECK(error.find(expected) != std::string::npos);
      }
    }
  }
}
