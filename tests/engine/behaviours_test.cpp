// Tests things that models do in a training loop, in comparison with the plain model.
#include <fsdp/recompute.h>

#include <thread>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "support/collective_log.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t in, int64_t middle, int64_t out) : first(in, middle), second(middle, out) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
  Unit<torch::nn::Linear> first, second;
};
TORCH_MODULE(Mlp);

}  // namespace

TEST_CASE("ten Adam steps of MLPs whose sizes do not divide equal the plain model's") {
  const std::vector<std::array<int64_t, 3>> sizes = {{16, 15, 8}, {7, 15, 3}, {16, 17, 8}};
  for (const auto& [in, middle, out] : sizes) {
    const Twin twin{.make = [=] { return Unit<Mlp>(in, middle, out).ptr(); },
                    .loss =
                        [=](torch::nn::Module& model, int step, int rank) {
                          return dynamic_cast<UnitImpl<MlpImpl>&>(model)
                              .call(values({4, in}, 10 * step + rank))
                              .square()
                              .sum();
                        },
                    .steps = 10,
                    .optimizer = TwinOptimizer::kAdam};
    for (const int world : {1, 2, 3, 5}) {
      CAPTURE(in);
      CAPTURE(world);
      check_close(train_sharded(twin, world, {.debug = true}), train_plain(twin, world));
    }
  }
}

TEST_CASE("delays in front of gathers, reductions and reshards change nothing") {
  const Twin twin = graph_twin(6, 9, in_a_row);
  for (const int world : {2, 3}) {
    const Trained plain = train_plain(twin, world);
    for (const bool reshard : {true, false}) {
      for (const int prefetch : {0, 2}) {
        CAPTURE(world);
        CAPTURE(reshard);
        CAPTURE(prefetch);
        check_same_bits(train_sharded(twin, world,
                                      {.reshard_after_forward = reshard,
                                       .prefetch_units = prefetch,
                                       .debug = true,
                                       .tuning = {.cpu_streams = CpuStreamKind::kThreaded}},
                                      /*delays=*/true),
                        plain);
      }
    }
  }
}

TEST_CASE("a unit called twice, shared inputs, branches and unused outputs keep the bits") {
  SUBCASE("called twice in one forward") {
    check_twin(graph_twin(2, 6, [](GraphImpl& g, const at::Tensor& x) {
      return g.norm(g.units[0](g.units[1](torch::tanh(g.units[0](x)))));
    }));
  }
  SUBCASE("units that share an input, as decoders share a memory") {
    check_twin(graph_twin(4, 6, [](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor memory = torch::tanh(g.units[0](x));
      at::Tensor sum = memory;
      for (int i = 1; i < 4; ++i) sum = sum + torch::tanh(g.units[i](memory));
      return g.norm(sum);
    }));
  }
  SUBCASE("the output of a unit is not used") {
    check_twin(graph_twin(3, 6, [](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor h = torch::tanh(g.units[0](x));
      g.units[1](h);
      return g.norm(g.units[2](h));
    }));
  }
  SUBCASE("a unit is left out in some steps") {
    check_twin(graph_twin(3, 6, [](GraphImpl& g, const at::Tensor& x) {
      at::Tensor h = torch::tanh(g.units[0](x));
      if (g.step != 1) h = torch::tanh(g.units[1](h));
      return g.norm(g.units[2](h));
    }));
  }
  SUBCASE("the root's own parameters are used on one rank only") {
    check_twin(graph_twin(2, 6, [](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor h = g.units[1](torch::tanh(g.units[0](x)));
      return g.rank == 0 ? g.norm(h) : h * 2;
    }));
  }
}

TEST_CASE("several forwards before their backwards keep the bits") {
  Twin twin = graph_twin(3, 6, in_a_row);
  twin.loss = [](torch::nn::Module& model, int step, int rank) {
    const at::Tensor first = graph_loss(model, 10 * step, rank);
    return first + graph_loss(model, 10 * step + 1, rank);
  };
  check_twin(twin);
}

TEST_CASE("no-grad and eval forwards between steps, and a unit alone, change nothing") {
  Twin twin = graph_twin(3, 6, in_a_row);
  twin.steps = 4;
  twin.before_step = [](torch::nn::Module& model, Engine*, int step) {
    auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(model);
    const at::NoGradGuard no_grad;
    graph.eval();
    graph.call(values({2, 6}, step));
    graph.units[1](values({2, 6}, step));
    graph.train();
  };
  check_twin(twin);
}

TEST_CASE("evaluation after a step sees the new parameters") {
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto twin = graph_twin(2, 6, in_a_row);
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, {});
    auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(*model);
    graph_loss(*model, 0, mesh.rank()).backward();
    const at::NoGradGuard no_grad;
    const at::Tensor before = graph.call(values({2, 6}, 5));
    for (ShardedParameter& parameter : engine.sharded_parameters()) parameter.local.zero_();
    const at::Tensor after = graph.call(values({2, 6}, 5));
    CHECK_FALSE(torch::equal(before, after));
    CHECK(torch::equal(after, torch::zeros_like(after)));
  });
}

TEST_CASE(
    "local views that nobody holds are forgotten by the next forward, which sees their changes") {
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
    Engine engine(model, mesh, {});
    auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(*model);
    const at::NoGradGuard no_grad;
    const auto output = [&] { return graph.call(values({2, 6}, 5)).abs().sum().item<float>(); };
    c10::weak_intrusive_ptr<c10::TensorImpl> view(
        engine.sharded_parameters()[0].local.getIntrusivePtr());
    CHECK_FALSE(view.expired());
    std::vector<at::Tensor> inner;  // views of views
    for (ShardedParameter& each : engine.sharded_parameters()) {
      each.local.data().fill_(0.5);
      inner.push_back(each.local.data());
    }
    const float half = output();
    CHECK_FALSE(view.expired());
    for (at::Tensor& each : inner) each.zero_();
    CHECK(output() == 0);
    CHECK_FALSE(view.expired());
    for (at::Tensor& each : inner) each.fill_(0.5);
    inner.clear();
    CHECK(output() == half);
    CHECK(view.expired());
    for (ShardedParameter& each : engine.sharded_parameters()) each.local.data().zero_();
    CHECK(output() == 0);
  });
}

TEST_CASE("a unit trained alone reduces its own gradients and no others") {
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto twin = graph_twin(3, 6, in_a_row);
    const auto model = build_seeded(7, twin.make);
    const auto plain = build_seeded(7, twin.make);
    Engine engine(model, mesh, {.debug = true});
    const at::Tensor x = values({2, 6}, 3);  // equal on both ranks, so is the mean
    dynamic_cast<UnitImpl<GraphImpl>&>(*model).units[1](x).square().sum().backward();
    dynamic_cast<UnitImpl<GraphImpl>&>(*plain).units[1](x).square().sum().backward();
    CHECK(engine.stats().reduces == 1);
    for (const ShardedParameter& parameter : engine.sharded_parameters()) {
      const bool touched = parameter.fqn.starts_with("u1.");
      CAPTURE(parameter.fqn);
      CHECK(parameter.local.grad().defined() == touched);
      if (!touched) continue;
      const at::Tensor expected = plain->named_parameters()[parameter.fqn].grad().flatten();
      const int64_t end = parameter.begin + parameter.local.numel();
      CHECK(bit_equal(parameter.local.grad(), expected.slice(0, parameter.begin, end)));
    }
  });
}

TEST_CASE("recomputed units keep the bits and cost no extra gather") {
  for (const bool every : {true, false}) {
    CAPTURE(every);
    const auto body = [every](GraphImpl& g, const at::Tensor& x) {
      at::Tensor h = x;
      for (size_t i = 0; i < g.units.size(); ++i) {
        const auto layer = [&g, i](at::Tensor in) { return torch::tanh(g.units[i](in)); };
        h = every || i % 2 == 0 ? recompute(layer, h) : layer(h);
      }
      return g.norm(h);
    };
    check_twin(graph_twin(4, 6, body));
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(4, 6, body).make);
      Engine engine(model, mesh, {});
      graph_loss(*model, 0, mesh.rank()).backward();
      CHECK(engine.stats().all_gathers == 5 + 4);  // in forward, and in backward without the root
      CHECK(engine.stats().reduces == 5);
    });
  }
}

TEST_CASE("two units in one recomputed function keep the bits") {
  check_twin(graph_twin(4, 6, [](GraphImpl& g, const at::Tensor& x) {
    at::Tensor h = x;
    for (int i = 0; i < 4; i += 2) {
      h = recompute(
          [&g, i](at::Tensor in) {
            return torch::tanh(g.units[i + 1](torch::tanh(g.units[i](in))));
          },
          h);
    }
    return g.norm(h);
  }));
}

TEST_CASE(
    "after an exception in forward or backward training goes on with the plain model's bits") {
  for (const bool in_backward : {false, true}) {
    Twin twin = graph_twin(4, 6, [in_backward](GraphImpl& g, const at::Tensor& x) {
      at::Tensor h = x;
      for (size_t i = 0; i < g.units.size(); ++i) {
        h = torch::tanh(g.units[i](h));
        if (g.step != 100 || i != 1) continue;
        if (!in_backward) throw std::runtime_error("thrown in forward");
        h.register_hook(
            [](at::Tensor) -> at::Tensor { throw std::runtime_error("thrown in backward"); });
      }
      return g.norm(h);
    });
    twin.before_step = [](torch::nn::Module& model, Engine* engine, int step) {
      if (engine == nullptr || step == 0) return;
      CHECK_THROWS_WITH_AS(graph_loss(model, 100, 0).backward(), doctest::Contains("thrown in"),
                           std::runtime_error);
      engine->zero_grad();
    };
    CAPTURE(in_backward);
    check_twin(twin);
  }
}

TEST_CASE("gradients that a failed backward has mixed are refused until zero_grad") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
      Engine engine(model, mesh, {});
      const auto fail = [&] {
        auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(*model);
        at::Tensor h = torch::tanh(graph.units[0](values({2, 6}, 1)));
        h.register_hook([](at::Tensor) -> at::Tensor { throw std::runtime_error("thrown"); });
        CHECK_THROWS(graph.units[1](h).sum().backward());
      };
      fail();  // must have no effect
      CHECK(engine.measure_gradients().norm() == 0.0);
      graph_loss(*model, 0, mesh.rank()).backward();
      const double norm = engine.measure_gradients().norm();
      fail();
      CHECK_THROWS_WITH_AS(engine.measure_gradients(), doctest::Contains("call zero_grad"),
                           StateError);
      CHECK_THROWS_WITH_AS(graph_loss(*model, 0, mesh.rank()).backward(),
                           doctest::Contains("a failed backward"), StateError);
      engine.zero_grad();
      graph_loss(*model, 0, mesh.rank()).backward();
      CHECK(engine.measure_gradients().norm() == norm);
    });
  }
}

TEST_CASE("an engine destroyed before its model leaves parameters and old graphs that say so") {
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
    at::Tensor loss;
    {
      Engine engine(model, mesh, {});
      loss = graph_loss(*model, 0, mesh.rank());
    }
    CHECK_THROWS_WITH(model->parameters()[0].sum(), doctest::Contains("the engine was destroyed"));
    CHECK_THROWS_WITH(loss.backward(), doctest::Contains("destroyed"));
    CHECK_THROWS_WITH_AS(graph_loss(*model, 0, 0), doctest::Contains("called without an engine"),
                         StateError);
  });
}

TEST_CASE("a backward through a graph older than the last step is refused") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
      Engine engine(model, mesh, {});
      torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.1));
      const at::Tensor old = graph_loss(*model, 0, mesh.rank());
      graph_loss(*model, 1, mesh.rank()).backward();
      optimizer.step();
      optimizer.zero_grad();
      CHECK_THROWS_WITH(old.backward(), doctest::Contains("modified by an inplace operation"));
      graph_loss(*model, 2, mesh.rank()).backward();
      CHECK(engine.measure_gradients().finite());
    });
  }
}

TEST_CASE("frozen units and frozen parameters in a unit keep the bits and are not reduced") {
  Twin twin = graph_twin(4, 6, in_a_row);
  twin.make = [] {
    auto graph = Unit<Graph>(4, 6, in_a_row).ptr();
    graph->units[1]->weight.set_requires_grad(false);
    graph->units[1]->bias.set_requires_grad(false);
    graph->units[2]->weight.set_requires_grad(false);
    return graph;
  };
  check_twin(twin);
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, {});
    const CollectiveLog collectives(mesh);
    graph_loss(*model, 0, mesh.rank()).backward();
    CHECK(engine.stats().reduces == 4);  // root, u0, u2, u3
    // u2 reduces only its bias. It has 6 elements, in slices of 16 on each of the 2 ranks.
    std::string lines;
    for (const std::string& line : collectives.lines()) lines += line + "\n";
    CAPTURE(lines);
    CHECK(lines.find("reduce_scatter 16 u2") != std::string::npos);
  });
}

TEST_CASE("a parameter frozen between steps is masked out") {
  Twin twin = graph_twin(3, 6, in_a_row);
  twin.before_step = [](torch::nn::Module& model, Engine*, int step) {
    if (step == 1) model.named_parameters()["u1.weight"].set_requires_grad(false);
    if (step == 2) model.named_parameters()["u1.weight"].set_requires_grad(true);
  };
  check_twin(twin);
}

TEST_CASE("one rank issues no collective and reads its parameters from the main shard itself") {
  for (const Strategy strategy : kStrategies) {
    run_torch_ranks(1, [&](Mesh mesh) {
      std::vector<const void*> seen;
      const auto model = build_seeded(7, [&] {
        return Unit<Graph>(2, 6, [&](GraphImpl& g, const at::Tensor& x) {
          const at::Tensor y = in_a_row(g, x);
          seen.push_back(g.norm->weight.const_data_ptr());
          return y;
        });
      });
      const CollectiveLog collectives(mesh);
      Engine engine(model.ptr(), mesh, {.strategy = strategy});
      graph_loss(*model.ptr(), 0, 0).backward();
      CHECK(engine.measure_gradients().norm() > 0);
      CHECK(collectives.lines().empty());
      CHECK(engine.stats().all_gathers == 0);
      REQUIRE(seen.size() == 1);
      CHECK(seen[0] == engine.sharded_parameters()[0].local.const_data_ptr());
      CHECK(engine.memory_plan().slots.empty());
    });
  }
}
