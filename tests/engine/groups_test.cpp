// Tests meshes with two axes: sharding within groups of ranks, and reductions over the groups.
#include <fsdp/checkpoint.h>

#include <map>

#include "engine/support/twin.h"
#include "plan/placement.h"
#include "support/collective_log.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kGroupLayers = 3;
constexpr int64_t kGroupUnits = kGroupLayers + 1;

}  // namespace

TEST_CASE("on a mesh of two axes each row has the plain model's bits, reduced in its order") {
  for (const TwinOptimizer kind : {TwinOptimizer::kSgd, TwinOptimizer::kAdam}) {
    Twin twin = graph_twin(kGroupLayers, 6, in_a_row);
    twin.optimizer = kind;
    for (const MeshShape& shape : kGroupShapes) {
      if (kind == TwinOptimizer::kAdam && shape.shard != 3) continue;
      for (const bool by_groups : {false, true}) {
        if (kind == TwinOptimizer::kAdam && !by_groups) continue;
        const Trained plain = train_plain(twin, shape, by_groups);
        for (const Strategy strategy : kAllStrategies) {
          if (is_by_groups(strategy) != by_groups) continue;
          for (const bool reshard : {true, false}) {
            if (!by_groups && !reshard) continue;  // the same as on a mesh of one axis
            if (!is_tried(shape.replicate + shape.shard + (reshard ? 1 : 0))) continue;
            CAPTURE(name_of(strategy));
            CAPTURE(shape.replicate);
            CAPTURE(shape.shard);
            CAPTURE(reshard);
            const auto streams = reshard ? CpuStreamKind::kInline : CpuStreamKind::kThreaded;
            check_same_bits(train_sharded(twin, shape,
                                          {.reshard_after_forward = reshard,
                                           .prefetch_units = reshard ? 1 : 2,
                                           .strategy = strategy,
                                           .debug = true,
                                           .tuning = {.cpu_streams = streams}}),
                            plain);
          }
        }
      }
    }
  }
}

TEST_CASE("gradients that are lent are reduced within groups and over them, with the same bits") {
  Twin twin = lending_twin();
  twin.steps = rounds(2, 1);
  for (const MeshShape& shape : {MeshShape{2, 2}, MeshShape{2, 3}}) {
    if (!is_tried(shape.shard)) continue;
    const Trained plain = train_plain(twin, shape, /*by_groups=*/true);
    for (const Strategy strategy : kGroupStrategies) {
      CAPTURE(name_of(strategy));
      CAPTURE(shape.shard);
      check_same_bits(train_sharded(twin, shape, {.strategy = strategy, .debug = true}), plain);
    }
  }
}

TEST_CASE("micro-batches are reduced inside each time, over the groups in the last") {
  constexpr int kMicro = 3;
  for (const MeshShape& shape : kGroupShapes) {
    // Each group adds the means of its micro-batches. The result is the mean over the groups.
    const auto plain = build_seeded(7, graph_twin(kGroupLayers, 6, in_a_row).make);
    std::vector<at::Tensor> expected;
    for (int group = 0; group < shape.replicate; ++group) {
      std::vector<at::Tensor> sums;
      for (int micro = 0; micro < kMicro; ++micro) {
        mean_gradients(*plain, shape.shard, [&](int place) {
          graph_loss(*plain, micro, group * shape.shard + place).backward();
        });
        for (size_t i = 0; i < plain->parameters().size(); ++i) {
          const at::Tensor gradient = plain->parameters()[i].grad().clone();
          micro == 0 ? sums.push_back(gradient) : static_cast<void>(sums[i] += gradient);
        }
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        group == 0 ? expected.push_back(sums[i]) : static_cast<void>(expected[i] += sums[i]);
      }
    }
    std::map<std::string, at::Tensor> by_name;
    for (size_t i = 0; i < expected.size(); ++i) {
      by_name[plain->named_parameters()[i].key()] = expected[i] / shape.replicate;
    }
    for (const Strategy strategy : {Strategy::kHybridShard, Strategy::kHfsdp}) {
      CAPTURE(name_of(strategy));
      CAPTURE(shape.replicate);
      CAPTURE(shape.shard);
      run_torch_ranks(shape, [&](Mesh mesh) {
        const auto model = build_seeded(7, graph_twin(kGroupLayers, 6, in_a_row).make);
        Engine engine(model, mesh, {.strategy = strategy});
        const std::vector<ShardedParameter> shards = engine.sharded_parameters();
        const CollectiveLog collectives(mesh);
        const size_t before = collectives.size();
        {
          const GradSync inside(engine, GradientSync::kInside);
          for (int micro = 0; micro + 1 < kMicro; ++micro) {
            graph_loss(*model, micro, mesh.rank()).backward();
          }
        }
        graph_loss(*model, kMicro - 1, mesh.rank()).backward();
        auto counts = collectives.counts_since(before);
        const bool cuts = strategy == Strategy::kHfsdp;
        CHECK(counts["reduce_scatter"] == kMicro * kGroupUnits + (cuts ? kGroupUnits : 0));
        CHECK(counts["all_reduce"] == (cuts ? 0 : kGroupUnits));
        for (const ShardedParameter& each : shards) {
          CAPTURE(each.fqn);
          const at::Tensor whole = by_name.at(each.fqn).flatten();
          CHECK(bit_equal(each.local.grad(), whole.narrow(0, each.begin, each.local.numel())));
        }
      });
    }
  }
}

TEST_CASE(
    "a step before the groups have summed is refused, and so is a pass inside after they have") {
  run_torch_ranks(MeshShape{.replicate = 2, .shard = 2}, [&](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(kGroupLayers, 6, in_a_row).make);
    Engine engine(model, mesh, {.strategy = Strategy::kHybridShard});
    graph_loss(*model, 0, mesh.rank()).backward();
    const GradSync inside(engine, GradientSync::kInside);
    CHECK_THROWS_WITH_AS(graph_loss(*model, 1, mesh.rank()).backward(),
                         doctest::Contains("a backward reduces gradients only within groups, but "
                                           "an earlier backward reduced them over all ranks"),
                         StateError);
    engine.zero_grad();
    graph_loss(*model, 1, mesh.rank()).backward();
  });
}

TEST_CASE("units whose last backward is not reached are summed over the groups all the same") {
  // The last micro-batch does not call the second unit.
  const auto skips = [](GraphImpl& graph, const at::Tensor& x) {
    at::Tensor h = torch::tanh(graph.units[0](x));
    if (graph.step == 0) h = torch::tanh(graph.units[1](h));
    return graph.norm(h);
  };
  const MeshShape shape{.replicate = 2, .shard = 2};
  for (const auto& [param, reduce] :
       {std::pair{torch::kFloat32, torch::kFloat32}, {torch::kBFloat16, torch::kBFloat16}}) {
    std::vector<std::map<std::string, at::Tensor>> gradients(4);
    run_torch_ranks(shape, [&, param = param, reduce = reduce](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(2, 6, skips).make);
      Engine engine(model, mesh,
                    {.mixed_precision = {.param_dtype = param, .reduce_dtype = reduce},
                     .strategy = Strategy::kHybridShard});
      const std::vector<ShardedParameter> shards = engine.sharded_parameters();
      {
        const GradSync inside(engine, GradientSync::kInside);
        graph_loss(*model, 0, mesh.rank()).backward();
      }
      graph_loss(*model, 1, mesh.rank()).backward();
      for (const ShardedParameter& each : shards) {
        gradients[mesh.rank()][each.fqn] = each.local.grad().clone();
      }
    });
    for (const auto& [fqn, gradient] : gradients[0]) {
      CAPTURE(fqn);
      CHECK(bit_equal(gradient, gradients[2].at(fqn)));
      CHECK(gradient.isfinite().all().item<bool>());
    }
    for (const auto& [fqn, gradient] : gradients[1]) {
      CHECK(bit_equal(gradient, gradients[3].at(fqn)));
    }
  }
}

TEST_CASE("units of one model may have strategies of their own") {
  Twin twin = graph_twin(kGroupLayers, 6, in_a_row);
  const MeshShape shape{.replicate = 2, .shard = 2};  // halves: all orders of four sums round alike
  const auto by_unit = [](std::string_view fqn) {
    return UnitOptions{.strategy = fqn == "u0"   ? Strategy::kReplicate
                                   : fqn == "u1" ? Strategy::kHybridShard
                                   : fqn == "u2" ? Strategy::kZero2
                                                 : Strategy::kFullShard};
  };
  check_close(train_sharded(twin, shape, {.unit_options = by_unit}),
              train_plain(twin, shape, /*by_groups=*/false));
  // The norm counts each element once, and is the same on all ranks.
  const auto model = build_seeded(7, twin.make);
  mean_gradients(*model, 4, [&](int rank) { graph_loss(*model, 0, rank).backward(); });
  const double expected = torch::nn::utils::clip_grad_norm_(model->parameters(), 1e9);
  run_torch_ranks(shape, [&](Mesh mesh) {
    const auto sharded = build_seeded(7, twin.make);
    Engine engine(sharded, mesh, {.unit_options = by_unit});
    graph_loss(*sharded, 0, mesh.rank()).backward();
    CHECK(engine.measure_gradients().norm() == doctest::Approx(expected).epsilon(1e-6));
  });
}

TEST_CASE("in groups the norm counts each element once, and names what is not finite") {
  for (const MeshShape& shape : kGroupShapes) {
    const auto plain = build_seeded(7, graph_twin(kGroupLayers, 6, in_a_row).make);
    mean_gradients_by_groups(*plain, shape,
                             [&](int rank) { graph_loss(*plain, 0, rank).backward(); });
    const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
    for (const Strategy strategy : kAllStrategies) {
      if (!is_by_groups(strategy) && shape.shard != 3) continue;
      CAPTURE(name_of(strategy));
      run_torch_ranks(shape, [&](Mesh mesh) {
        const auto model = build_seeded(7, graph_twin(kGroupLayers, 6, in_a_row).make);
        Engine engine(model, mesh, {.strategy = strategy});
        graph_loss(*model, 0, mesh.rank()).backward();
        CHECK(engine.measure_gradients().norm() == doctest::Approx(expected).epsilon(1e-5));
        engine.zero_grad();
        const float factor = mesh.rank() == mesh.world_size() - 1 ? INFINITY : 1.0F;
        (graph_loss(*model, 0, mesh.rank()) * factor).backward();
        const GradientReport report = engine.measure_gradients();
        CHECK_FALSE(report.finite());
        CHECK(report.first_nonfinite().starts_with("unit '"));
      });
    }
  }
}

TEST_CASE("what each rank writes back of its slice is the lowest holder's on every group") {
  const MeshShape shape{.replicate = 2, .shard = 2};
  for (const Strategy strategy : kAllStrategies) {
    CAPTURE(name_of(strategy));
    std::vector<std::map<std::string, at::Tensor>> seen(4);
    run_torch_ranks(shape, [&](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(1, 64, in_a_row).make);
      Engine engine(model, mesh, {.strategy = strategy});
      {
        const Gathered whole(engine, WriteBack::kOwnSlice);
        const at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : model->parameters()) parameter.fill_(mesh.rank() + 1);
      }
      seen[mesh.rank()] = full_parameters(engine);
    });
    for (const auto& [fqn, value] : seen[0]) {
      CAPTURE(fqn);
      for (int rank = 1; rank < 4; ++rank) CHECK(bit_equal(value, seen[rank].at(fqn)));
    }
    const at::Tensor weight = seen[0].at("u0.weight");
    const double last = weight.flatten()[-1].item<double>();
    const Placement main = moves_of(placements_of(strategy), shape).row.optimizer;
    CHECK(last == (main == Placement::kReplicate ? 1 : main == Placement::kShardGroup ? 2 : 4));
  }
}

TEST_CASE("a unit with a strategy of its own is not built under a BuildScope") {
  run_torch_ranks(MeshShape{.replicate = 2, .shard = 2}, [](Mesh mesh) {
    BuildScope building(mesh, {.unit_options = [](std::string_view) {
                          return UnitOptions{.strategy = Strategy::kHybridShard};
                        }});
    const auto model = graph_twin(1, 8, in_a_row).make();
    CHECK_THROWS_WITH_AS(Engine(model, building), doctest::Contains("UnitOptions::strategy"),
                         InvalidArgument);
  });
}
