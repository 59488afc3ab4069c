// Tests legal programs that an engine can easily treat wrongly: failed backwards, forwards between
// backward and step, unfreezing, gradients kept in a low-precision dtype, and forwards whose result
// is dropped.
#include <fsdp/recompute.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

GraphImpl& graph_of(torch::nn::Module& model) { return dynamic_cast<GraphImpl&>(model); }

at::Tensor failing_loss(torch::nn::Module& model, int rank) {
  auto& graph = graph_of(model);
  const at::Tensor h = torch::tanh(graph.units[0](values({2, 6}, 1 + rank)));
  const at::Tensor last = graph.units[2](torch::tanh(graph.units[1](h)));
  h.register_hook([](at::Tensor) -> at::Tensor { throw std::runtime_error("thrown"); });
  return last.sum();
}

}  // namespace

TEST_CASE("training goes on to the plain model's bits after a backward that threw on all ranks") {
  Twin twin = graph_twin(3, 6, in_a_row);
  twin.steps = 4;
  twin.before_step = [](torch::nn::Module& model, Engine* engine, int step) {
    if (engine == nullptr || step % 2 == 0) return;
    CHECK_THROWS_WITH(failing_loss(model, engine->mesh().rank()).backward(), "thrown");
    engine->zero_grad();
  };
  for (const auto strategy : kStrategies) {
    for (const auto streams : every_stream_kind()) {
      for (const int world : {2, 3}) {
        CAPTURE(world);
        const Options options{
            .strategy = strategy, .debug = true, .tuning = {.cpu_streams = streams}};
        check_same_bits(train_sharded(twin, world, options, /*delays=*/true),
                        train_plain(twin, world));
      }
    }
  }
}

TEST_CASE(
    "a forward with gradients between backward and step is right, whatever a rank's shard holds") {
  // On five ranks, some shards contain only padding. torch's SGD must change nothing in them.
  for (const double lr : {0.2, 0.0}) {
    for (const int world : {1, 2, 5}) {
      CAPTURE(world);
      run_torch_ranks(world, [&](Mesh mesh) {
        const auto model = build_seeded(7, graph_twin(2, 3, in_a_row).make);
        Engine engine(model, mesh, {.debug = true});
        torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(lr));
        at::Tensor before, after;
        for (int step = 0; step < rounds(70, 8); ++step) {
          graph_loss(*model, step % 3, mesh.rank()).backward();
          before = graph_loss(*model, 9, 0);
          optimizer.step();
          after = graph_loss(*model, 9, 0);
          optimizer.zero_grad();
        }
        CHECK((before.item<float>() == after.item<float>()) == (lr == 0));
      });
    }
  }
}

TEST_CASE("parameters are unfrozen between steps") {
  Twin twin = graph_twin(3, 6, in_a_row);
  twin.steps = 5;
  twin.make = [] {
    Unit<Graph> model(3, 6, in_a_row);
    model->units[0]->weight.set_requires_grad(false);
    model->units[1]->weight.set_requires_grad(false);
    model->units[1]->bias.set_requires_grad(false);
    return model.ptr();
  };
  const auto thaw = [](torch::nn::Module& model, int step) {
    if (step == 2) graph_of(model).units[1]->weight.set_requires_grad(true);
    if (step == 3) graph_of(model).units[1]->bias.set_requires_grad(true);
    if (step == 3) graph_of(model).units[0]->weight.set_requires_grad(true);
  };
  const auto optimizer_of = [](std::vector<at::Tensor> tensors) {
    return torch::optim::SGD(std::move(tensors), torch::optim::SGDOptions(0.2));
  };
  for (const int world : {1, 2, 3}) {
    for (const auto strategy : kStrategies) {
      CAPTURE(world);
      const auto plain = build_seeded(7, twin.make);
      auto plain_sgd = optimizer_of(plain->parameters());
      for (int step = 0; step < twin.steps; ++step) {
        thaw(*plain, step);
        mean_gradients(*plain, world, [&](int rank) { graph_loss(*plain, step, rank).backward(); });
        for (const at::Tensor& each : plain->parameters()) {
          if (!each.requires_grad()) each.mutable_grad() = at::Tensor();
        }
        plain_sgd.step();
      }
      const auto expected = plain_parameters(*plain);
      run_torch_ranks(world, [&](Mesh mesh) {
        const auto model = build_seeded(7, twin.make);
        Engine engine(model, mesh, {.strategy = strategy, .debug = true});
        for (int step = 0; step < twin.steps; ++step) {
          thaw(*model, step);
          graph_loss(*model, step, mesh.rank()).backward();
          auto sgd = optimizer_of(engine.parameters());
          sgd.step();
          engine.zero_grad();
        }
        for (const auto& [fqn, value] : full_parameters(engine)) {
          CAPTURE(fqn);
          CHECK(bit_equal(value, expected.at(fqn)));
        }
      });
    }
  }
}

TEST_CASE("unfreezing while gradients wait for a step is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, [] {
      Unit<Graph> made(2, 6, in_a_row);
      made->units[0]->weight.set_requires_grad(false);
      return made.ptr();
    });
    Engine engine(model, mesh, {});
    graph_loss(*model, 0, mesh.rank()).backward();
    graph_of(*model).units[0]->weight.set_requires_grad(true);
    CHECK_THROWS_WITH_AS(graph_loss(*model, 1, mesh.rank()),
                         doctest::Contains("call zero_grad before you unfreeze a parameter"),
                         StateError);
    engine.zero_grad();
    graph_loss(*model, 1, mesh.rank()).backward();
  });
}

TEST_CASE("gradients kept over hundreds of passes add up in fp32 where they are reduced in bf16") {
  const int passes = rounds(600, 300);  // in bf16 the 257th gradient adds nothing
  for (const int world : {1, 2}) {
    for (const auto strategy : kStrategies) {
      CAPTURE(world);
      run_torch_ranks(world, [&](Mesh mesh) {
        const auto model = build_seeded(7, [] {
          return Unit<Graph>(1, 6, [](GraphImpl& g, const at::Tensor& x) { return g.units[0](x); })
              .ptr();
        });
        Engine engine(model, mesh,
                      {.mixed_precision = {.reduce_dtype = torch::kBFloat16},
                       .strategy = strategy,
                       .debug = true});
        auto& root = dynamic_cast<UnitImpl<GraphImpl>&>(*model);
        const auto backward = [&] { root.call(torch::ones({1, 6})).sum().backward(); };
        {
          const GradSync keep(engine, false);
          for (int pass = 1; pass < passes; ++pass) backward();
          CHECK(engine.stats().memory.in_use[MemoryCategory::kReduceSlots] <=
                engine.memory_plan().kept_gradient_bytes);
        }
        backward();
        for (const ShardedParameter& each : engine.sharded_parameters()) {
          if (each.fqn.starts_with("norm") || each.local.numel() == 0) continue;
          CHECK(each.local.grad().clone().eq(passes).all().item<bool>());
        }
      });
    }
  }
}

TEST_CASE("forwards with gradients whose outputs are dropped leave nothing behind") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
    Engine engine(model, mesh, {.debug = true});
    const at::Tensor held = graph_loss(*model, 0, mesh.rank());
    for (int i = 0; i < rounds(3000, 300); ++i) graph_loss(*model, 1, mesh.rank());
    CHECK(state_of(engine).pass.schedule().recorded_calls() < 200);
    held.backward();
    graph_loss(*model, 2, mesh.rank()).backward();
    CHECK(engine.stats().memory.in_use[MemoryCategory::kParameterSlots] == 0);
  });
}

TEST_CASE("what recomputation needs is planned from the first step on, to the byte") {
  std::vector<std::string> warnings;
  RunRanksOptions ranks_options = torch_ranks_options();
  ranks_options.mesh.on_event = [&](const MeshEvent& event) {
    warnings.push_back(event.text.what);
  };
  const auto body = [](Mesh mesh) {
    const auto model =
        build_seeded(7, graph_twin(4, 24, [](GraphImpl& g, const at::Tensor& x) {
                          at::Tensor h = x;
                          for (int i = 0; i < 4; i += 2) {
                            h = recompute(
                                [&g, i](const at::Tensor& in) {
                                  return torch::tanh(g.units[i + 1](torch::tanh(g.units[i](in))));
                                },
                                h);
                          }
                          return g.norm(h);
                        }).make);
    Engine engine(model, mesh, {.debug = true});
    int64_t allocations = 0;
    int64_t overflows = 0;
    for (int step = 0; step < 6; ++step) {
      engine.reset_peak_memory();
      graph_loss(*model, step, mesh.rank()).backward();
      const EngineStats stats = engine.stats();
      if (step == 0) overflows = stats.memory.overflow_slots;  // the guess did not contain it
      if (step == 1) allocations = stats.memory.system_allocations;
      if (step > 0) {
        CHECK(stats.memory.peak.total() == engine.memory_plan().peak_bytes());
        CHECK(stats.memory.held_bytes == engine.memory_plan().held_bytes);
        CHECK(engine.memory_plan().learned_bytes == 0);
      }
      engine.zero_grad();
    }
    CHECK(engine.stats().memory.system_allocations == allocations);
    CHECK(engine.stats().memory.overflow_slots == overflows);
  };
  run_ranks(2, body, ranks_options);
  CHECK(warnings.empty());
}
