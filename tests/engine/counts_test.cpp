// Tests the number of collectives in a step, and the order of the events of each unit.
#include <fmt/format.h>
#include <fsdp/recompute.h>

#include <set>

#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kLayers = 4;  // with the root: five units

using Events = std::vector<std::string>;

// Returns the events of one step. An earlier step has already recorded the order of the units.
Events events_of_step(const Options& options, int world = 2) {
  Events events;
  run_torch_ranks(world, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Graph>(3, 6, in_a_row); });
    Engine engine(model, mesh, options);
    graph_loss(*model, 0, mesh.rank()).backward();
    engine.zero_grad();
    Events own;
    engine.observe_events([&](std::string_view event, std::string_view fqn) {
      own.push_back(fmt::format("{} {}", event, fqn.empty() ? "root" : fqn));
    });
    graph_loss(*model, 1, mesh.rank()).backward();
    engine.observe_events(nullptr);
    graph_loss(*model, 2, mesh.rank()).backward();
    if (mesh.rank() == 0) events = own;
  });
  return events;
}

Events list(std::string_view text) {
  Events events;
  std::istringstream in{std::string(text)};
  std::string event, unit;
  while (in >> event >> unit) events.push_back(event + " " + unit);
  return events;
}

// Returns the events without gathers. The prefetch depth must not change them.
Events without_unshard(Events events) {
  std::erase_if(events, [](const std::string& each) { return each.starts_with("unshard"); });
  return events;
}

}  // namespace

TEST_CASE("units that stay for backward are not gathered there, and bits and plan hold") {
  const Twin twin = graph_twin(kLayers, 6, in_a_row);
  for (const int world : {1, 2, 3}) {
    const Trained plain = train_plain(twin, world);
    for (const int kept : {1, 2, 9}) {
      for (const int recompute : {0, 1}) {
        CAPTURE(world);
        CAPTURE(kept);
        CAPTURE(recompute);
        const Options options{
            .keep_last_units = kept, .prefetch_units = kept % 3, .recompute = recompute};
        check_same_bits(train_sharded(twin, world, options), plain);
        if (world == 1) continue;
        run_torch_ranks(world, [&](Mesh mesh) {
          const auto model = build_seeded(7, twin.make);
          Engine engine(model, mesh, options);
          for (int step = 0; step < 3; ++step) {
            const int64_t before = engine.stats().all_gathers;
            graph_loss(*model, step, mesh.rank()).backward();
            engine.zero_grad();
            CHECK(engine.stats().all_gathers - before ==
                  kLayers + 1 + kLayers - std::min(kept, kLayers));
          }
        });
      }
    }
  }
  run_torch_ranks(1, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    CHECK_THROWS_WITH_AS(Engine(model, mesh, {.keep_last_units = -1}),
                         doctest::Contains("keep_last_units is -1"), InvalidArgument);
    CHECK_THROWS_WITH_AS(
        Engine(model, mesh, {.reshard_after_forward = false, .keep_last_units = 1}),
        doctest::Contains("keep_last_units is 1, but all units stay gathered"), InvalidArgument);
  });
}

TEST_CASE("without prefetch each unit is gathered when it is needed and given back at once") {
  CHECK((events_of_step({.prefetch_units = 0}) == list(R"(
    unshard root  forward root
    unshard u0  forward u0  reshard u0
    unshard u1  forward u1  reshard u1
    unshard u2  forward u2  reshard u2
    pre_backward root
    pre_backward u2  unshard u2  reshard u2  reduce u2
    pre_backward u1  unshard u1  reshard u1  reduce u1
    pre_backward u0  unshard u0  reshard u0  reduce u0
    reshard root  reduce root)")));
}

TEST_CASE("with prefetch 1 the next unit is gathered before the present one runs") {
  CHECK((events_of_step({.prefetch_units = 1}) == list(R"(
    unshard root  unshard u0  forward root
    unshard u1  forward u0  reshard u0
    unshard u2  forward u1  reshard u1
    forward u2  reshard u2
    pre_backward root  unshard u2
    pre_backward u2  unshard u1  reshard u2  reduce u2
    pre_backward u1  unshard u0  reshard u1  reduce u1
    pre_backward u0  reshard u0  reduce u0
    reshard root  reduce root)")));
}

TEST_CASE("with prefetch 2 two units are gathered ahead, in forward and in backward") {
  CHECK((events_of_step({.prefetch_units = 2}) == list(R"(
    unshard root  unshard u0  unshard u1  forward root
    unshard u2  forward u0  reshard u0
    forward u1  reshard u1
    forward u2  reshard u2
    pre_backward root  unshard u2  unshard u1
    pre_backward u2  unshard u0  reshard u2  reduce u2
    pre_backward u1  reshard u1  reduce u1
    pre_backward u0  reshard u0  reduce u0
    reshard root  reduce root)")));
}

TEST_CASE("without reshard after forward nothing is gathered in backward") {
  CHECK((events_of_step({.reshard_after_forward = false}) == list(R"(
    unshard root  unshard u0  forward root
    unshard u1  forward u0
    unshard u2  forward u1
    forward u2
    pre_backward root
    pre_backward u2  reshard u2  reduce u2
    pre_backward u1  reshard u1  reduce u1
    pre_backward u0  reshard u0  reduce u0
    reshard root  reduce root)")));
}

TEST_CASE("prefetch, streams and world change nothing but when gathers are issued") {
  const Events expected = without_unshard(events_of_step({.prefetch_units = 0}));
  for (const int world : {1, 2, 3}) {
    for (const int depth : {0, 1, 2, 7}) {
      for (const auto streams : every_stream_kind()) {
        CAPTURE(world);
        CAPTURE(depth);
        CHECK((without_unshard(events_of_step(
                   {.prefetch_units = depth, .tuning = {.cpu_streams = streams}}, world)) ==
               expected));
      }
    }
  }
}

TEST_CASE("gathers and reductions follow their formulas") {
  struct Case {
    std::string_view name;
    Options options;
    int kept = 0;  // units besides the root that need no gather in backward
  };
  const std::vector<Case> cases = {
      {"default", {}, 0},
      {"no reshard", {.reshard_after_forward = false}, kLayers},
      {"one kept",
       {.unit_options =
            [](std::string_view fqn) {
              return fqn == "u1" ? UnitOptions{.reshard_after_forward = false} : UnitOptions{};
            }},
       1}};
  for (const Case& each : cases) {
    for (const int world : {2, 3}) {
      for (const int depth : {0, 1, 2}) {
        CAPTURE(each.name);
        CAPTURE(depth);
        run_torch_ranks(world, [&](Mesh mesh) {
          auto model = build_seeded(7, [] { return Unit<Graph>(kLayers, 6, in_a_row); });
          Options options = each.options;
          options.prefetch_units = depth;
          Engine engine(model, mesh, options);
          const int64_t units = kLayers + 1, forward = units, backward = kLayers - each.kept;
          for (int step = 0; step < 3; ++step) {
            const EngineStats before = engine.stats();
            graph_loss(*model, step, mesh.rank()).backward();
            engine.zero_grad();
            CHECK(engine.stats().all_gathers - before.all_gathers == forward + backward);
            CHECK(engine.stats().reduces - before.reduces == units);
            CHECK(engine.stats().passes - before.passes == 1);
          }
          CHECK(engine.stats().memory.overflow_slots == 0);
        });
      }
    }
  }
}

TEST_CASE("a unit whose backward reads no weight is not gathered there") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
    Engine engine(model, mesh, {.unit_options = [](std::string_view fqn) {
                    return fqn == "embedding" ? UnitOptions{.unshard_in_backward = false}
                                              : UnitOptions{};
                  }});
    loss_of(model, batch_of(0, mesh.rank())).backward();
    CHECK(engine.stats().all_gathers == 5 + 3);
    CHECK(engine.stats().reduces == 5);
  });
}

TEST_CASE("accumulation reduces each time or once, with exact counts and one large batch's sum") {
  constexpr int kMicro = 3;
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 3}) {
      auto plain = build_seeded(7, [] { return Unit<Graph>(kLayers, 6, in_a_row); });
      mean_gradients(*plain, world, [&](int rank) {
        for (int micro = 0; micro < kMicro; ++micro) graph_loss(*plain, micro, rank).backward();
      });
      for (const int kept : {0, 1, 2}) {  // number of first micro-batches without reduction
        CAPTURE(world);
        CAPTURE(kept);
        run_torch_ranks(world, [&](Mesh mesh) {
          const auto make = [] { return Unit<Graph>(kLayers, 6, in_a_row); };
          auto model = build_seeded(7, make);
          Engine engine(model, mesh, {.strategy = strategy, .debug = true});
          for (int step = 0; step < 2; ++step) {
            const EngineStats before = engine.stats();
            for (int micro = 0; micro < kMicro; ++micro) {
              const GradSync sync(engine, micro >= kept);
              graph_loss(*model, micro, mesh.rank()).backward();
            }
            const int64_t units = kLayers + 1;
            const bool each_use = strategy == Strategy::kFullShard;
            // Two things count as a change here and cause a gather. In the first step, the copies
            // are made. In the second step, the views that sharded_parameters() returned in the
            // first step may have been written.
            const bool each_change = strategy == Strategy::kZero2 || strategy == Strategy::kZero1;
            CHECK(engine.stats().all_gathers - before.all_gathers ==
                  (world == 1    ? 0
                   : each_use    ? kMicro * (units + kLayers)
                   : each_change ? units
                                 : 0));
            if (world > 1) {
              CHECK(engine.stats().reduces - before.reduces == (kMicro - kept) * units);
            }
            for (const ShardedParameter& each : engine.sharded_parameters()) {
              CAPTURE(each.fqn);
              const at::Tensor whole = plain->named_parameters()[each.fqn].grad().flatten();
              const at::Tensor own = whole.slice(0, each.begin, each.begin + each.local.numel());
              CHECK(torch::allclose(each.local.grad(), own, 1.3e-6, 1e-6));
            }
            engine.zero_grad();
          }
        });
      }
    }
  }
}

TEST_CASE("gradients kept without reduction are reduced by the next pass also of untouched units") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] {
      return Unit<Graph>(3, 6, [](GraphImpl& g, const at::Tensor& x) {
        at::Tensor h = torch::tanh(g.units[0](x));
        if (g.step == 0) h = torch::tanh(g.units[1](h));
        return g.norm(g.units[2](h));
      });
    });
    Engine engine(model, mesh, {.debug = true});
    {
      const GradSync keep(engine, false);
      graph_loss(*model, 0, mesh.rank()).backward();
    }
    CHECK(engine.stats().reduces == 0);
    CHECK(engine.measure_gradients().norm() == 0.0);
    graph_loss(*model, 1, mesh.rank()).backward();
    CHECK(engine.stats().reduces == 4);
    CHECK(engine.measure_gradients().norm() > 0.0);
  });
}
