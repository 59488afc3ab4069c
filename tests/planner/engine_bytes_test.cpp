#include <fsdp/checkpoint_options.h>
#include <fsdp/ema.h>
#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include "planner/support/optimizer_of.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Make = std::function<Unit<Chain>()>;

Unit<Chain> small_chain() { return Unit<Chain>(16, 4); }

at::Tensor planned_loss(Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); }

StepPlan planned(const MeshShape& shape, const Options& options, const Make& make,
                 OptimizerKind optimizer) {
  const PlanRequest request{.ranks = shape.size(Axis::kWorld),
                            .mesh = {.shard = shape.shard, .replicate = shape.replicate},
                            .options = options,
                            .optimizer = optimizer};
  return plan(request, make, planned_loss);
}

void check_same(const MemoryPlan& planned, const MemoryPlan& run) {
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    CAPTURE(name_of(category));
    CHECK(planned.rest[category] == run.rest[category]);
    CHECK(planned.forward_peak[category] == run.forward_peak[category]);
    CHECK(planned.after_forward[category] == run.after_forward[category]);
    CHECK(planned.backward_peak[category] == run.backward_peak[category]);
    CHECK(planned.after_backward[category] == run.after_backward[category]);
  }
  CHECK((planned.slots == run.slots));
  CHECK(planned.held_bytes == run.held_bytes);
  CHECK((planned.host_rest == run.host_rest));
  CHECK((planned.host_peak == run.host_peak));
  CHECK(planned.host_held_bytes == run.host_held_bytes);
  CHECK(planned.learned_bytes == run.learned_bytes);
  CHECK(planned.kept_gradient_bytes == run.kept_gradient_bytes);
}

void check_case(const MeshShape& shape, const Options& options, const Make& make = small_chain,
                OptimizerKind kind = OptimizerKind::kAdamW) {
  CAPTURE(shape.replicate);
  CAPTURE(shape.shard);
  CAPTURE(static_cast<int>(options.strategy));
  CAPTURE(options.recompute);
  CAPTURE(options.cpu_offload);
  CAPTURE(options.prefetch_units);
  const StepPlan plan = planned(shape, options, make, kind);
  run_torch_ranks(shape, [&](Mesh mesh) {
    auto model = build_seeded(7, make);
    Engine engine(model, mesh, options);
    const auto optimizer = optimizer_of(engine, {.kind = kind});
    EngineStats before;
    for (int step = 0; step < 3; ++step) {
      before = engine.stats();
      loss_of(model, batch_of(step, mesh.rank())).backward();
      if (!options.optimizer_in_backward) optimizer->clip_grad_norm(1.0);
      optimizer->step();
      optimizer->zero_grad();
    }
    CHECK((plan.traffic == engine.stats().sent - before.sent));
    check_same(plan.memory, engine.memory_plan());
    CHECK(engine.stats().memory.held_bytes == plan.memory.held_bytes);
  });
}

}  // namespace

TEST_CASE("a plan's engine bytes are the run's, in every strategy on 1 to 4 ranks") {
  for (const int world : {1, 2, 3, 4}) {
    for (const Strategy strategy : kStrategies) {
      for (const int recompute : {0, 1}) {
        for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
          for (const bool offload : {false, true}) {
            check_case({.shard = world},
                       {.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
                        .recompute = recompute,
                        .cpu_offload = offload,
                        .strategy = strategy});
          }
        }
      }
    }
  }
}

TEST_CASE("a plan's engine bytes are the run's on meshes of two axes, in every strategy") {
  for (const MeshShape& shape : kGroupShapes) {
    for (const Strategy strategy : kAllStrategies) {
      for (const int recompute : {0, 1}) {
        for (const bool offload : {false, true}) {
          check_case(shape, {.recompute = recompute, .cpu_offload = offload, .strategy = strategy});
        }
      }
    }
  }
}

TEST_CASE("a plan's engine bytes are the run's for every option that they depend on") {
  for (const int world : {1, 3}) {
    for (const Options& options : {
             Options{.reshard_after_forward = false},
             Options{.keep_last_units = 2},
             Options{.prefetch_units = 0},
             Options{.prefetch_units = 2},
             Options{.optimizer_in_backward = true},
             Options{.recompute = 1, .cpu_offload = true, .optimizer_in_backward = true},
             Options{.optimizer_in_backward = true, .strategy = Strategy::kReplicate},
             Options{.optimizer_in_backward = true,
             .strategy = Strategy::kZero1,
             .tuning = {.cpu_streams = CpuStreamKind::kThreaded}},
             Options{.mixed_precision = {.param_dtype = torch::kBFloat16}},
             Options{.tuning = {.cpu_streams = CpuStreamKind::kThreaded}},
             Options{.unit_options =
                         [](std::string_view fqn) {
                           return UnitOptions{.unshard_in_backward = fqn != "embedding"};
                         }},
         }) {
      check_case({.shard = world}, options);
    }
  }
}

TEST_CASE("a plan's engine bytes are the run's with every kind of optimizer") {
  const Make make = [] { return Unit<Chain>(64, 2, 67); };
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kSgdMomentum, OptimizerKind::kLars,
        OptimizerKind::kAdamW, OptimizerKind::kLamb, OptimizerKind::kAdamW8bit}) {
    CAPTURE(static_cast<int>(kind));
    const int64_t granule = kind == OptimizerKind::kAdamW8bit ? AdamW8bit::kBlockNumel : 1;
    for (const MeshShape& shape : {MeshShape{1, 1}, MeshShape{1, 3}, MeshShape{2, 2}}) {
      for (const bool offload : {false, true}) {
        for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHybridShard}) {
          check_case(shape,
                     {.cpu_offload = offload, .strategy = strategy, .shard_granule = granule}, make,
                     kind);
        }
      }
    }
  }
}

TEST_CASE("a plan's engine bytes are the run's where gradients are lent") {
  const Make make = [] { return Unit<Chain>(128, 2, 2221); };
  for (const MeshShape& shape : {MeshShape{1, 3}, MeshShape{2, 2}}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHfsdp, Strategy::kHpz}) {
      check_case(shape, {.strategy = strategy}, make);
    }
  }
}

TEST_CASE("a plan counts the state of optimizers that have parts of the model") {
  const auto of_blocks = [](const ShardedParameter& each) { return each.fqn.starts_with("block"); };
  const auto of_others = [=](const ShardedParameter& each) { return !of_blocks(each); };
  // The root's norm is divided between the slices of the two ranks.
  const auto of_norm_bias = [](const ShardedParameter& each) { return each.fqn == "norm.bias"; };
  const PlannedOptimizer adamw{.parameters = of_blocks},
      sgd{.kind = OptimizerKind::kSgdMomentum, .parameters = of_others},
      small{.kind = OptimizerKind::kSgdMomentum, .parameters = of_norm_bias};
  for (const std::vector<PlannedOptimizer>& optimizers :
       {std::vector{adamw, sgd}, std::vector{adamw}, std::vector{adamw, small}}) {
    CAPTURE(optimizers.size());
    const StepPlan plan =
        fsdp::plan({.ranks = 3, .optimizers = optimizers}, small_chain, planned_loss);
    run_torch_ranks(3, [&](Mesh mesh) {
      auto model = build_seeded(7, small_chain);
      Engine engine(model, mesh);
      std::vector<std::unique_ptr<Optimizer>> made;
      for (const PlannedOptimizer& each : optimizers) made.push_back(optimizer_of(engine, each));
      for (int step = 0; step < 3; ++step) {
        loss_of(model, batch_of(step, mesh.rank())).backward();
        for (const auto& each : made) each->step();
        for (const auto& each : made) each->zero_grad();
        engine.zero_grad();
      }
      if (mesh.rank() == 0) check_same(plan.memory, engine.memory_plan());
    });
  }
}

TEST_CASE("a plan counts the average of the weights") {
  for (const bool offload : {false, true}) {
    const PlanRequest request{.ranks = 3,
                              .mesh = {.shard = 3},
                              .options = {.cpu_offload = offload},
                              .ema = true,
                              .checkpoints = CheckpointOptions{}};
    const StepPlan planned_with = plan(request, small_chain, planned_loss);
    PlanRequest without = request;
    without.ema = false;
    const StepPlan planned_without = plan(without, small_chain, planned_loss);
    CHECK(planned_with.checkpoint->tensor_bytes - planned_without.checkpoint->tensor_bytes ==
          4 * planned_with.parameters);
    run_torch_ranks(3, [&](Mesh mesh) {
      auto model = build_seeded(7, small_chain);
      Engine engine(model, mesh, request.options);
      AdamW optimizer(engine, {});
      Ema ema(engine);
      for (int step = 0; step < 3; ++step) {
        loss_of(model, batch_of(step, mesh.rank())).backward();
        optimizer.clip_grad_norm(1.0);
        ema.update(optimizer.step());
        optimizer.zero_grad();
      }
      if (mesh.rank() == 0) check_same(planned_with.memory, engine.memory_plan());
    });
  }
}

TEST_CASE("a planner's plan is what a plan of its own would be, whatever it has planned before") {
  const Make make = [] { return Unit<Chain>(64, 2, 4441); };
  const auto named = [](std::string_view name) {
    return [name](std::string_view fqn) { return fqn == name; };
  };
  const auto own = [](const UnitOptions& of_head) {
    return [of_head](std::string_view fqn) { return fqn == "head" ? of_head : UnitOptions{}; };
  };
  const MeshOptions gpus{.device = DeviceKind::kCuda};
  const PlanRequest requests[] = {
      {.ranks = 4},
      {.ranks = 4, .options = {.ignore = named("head.weight")}},
      {.ranks = 4, .options = {.ignore = named("head.bias")}},
      {.ranks = 4, .mesh = gpus, .shares_gpu = true},
      {.ranks = 4, .mesh = gpus},
      {.ranks = 4, .maps_shards = true},
      {.ranks = 2, .optimizer = OptimizerKind::kSgd},
      {.ranks = 4, .optimizers = {{.parameters = fsdp::under("head")}}},
      {.ranks = 4, .options = {.gradient_divide_factor = 3.0F}},
      {.ranks = 4, .options = {.gradient_reduction = GradientReduction::kSum}},
      {.ranks = 4, .options = {.mixed_precision = {.reduce_dtype = torch::kBFloat16}}},
      {.ranks = 4, .options = {.tuning = {.cpu_streams = CpuStreamKind::kThreaded}}},
      {.ranks = 4, .options = {.prefetch_units = 2, .debug = true}},
      {.ranks = 4, .options = {.reshard_after_forward = false}},
      {.ranks = 4, .options = {.keep_last_units = 1}},
      {.ranks = 4, .options = {.optimizer_in_backward = true}},
      {.ranks = 4, .options = {.mixed_precision = {.param_dtype = torch::kBFloat16}}},
      {.ranks = 4,
       .options = {.mixed_precision = {.param_dtype = torch::kBFloat16,
                                       .cast_forward_inputs = false}}},
      {.ranks = 4, .options = {.mixed_precision = {.output_dtype = torch::kFloat64}}},
      {.ranks = 4,
       .options = {.unit_options =
                       own({.mixed_precision = MixedPrecision{.param_dtype = torch::kBFloat16}})}},
      {.ranks = 4,
       .options = {.mixed_precision = {.param_dtype = torch::kBFloat16},
                   .unit_options =
                       own({.mixed_precision = MixedPrecision{.param_dtype = torch::kBFloat16,
                                                              .cast_forward_inputs = false}})}},
      {.ranks = 4,
       .options = {.unit_options =
                       own({.mixed_precision = MixedPrecision{.reduce_dtype = torch::kBFloat16}})}},
      {.ranks = 4, .options = {.unit_options = own({.recompute = true})}},
      {.ranks = 4, .options = {.unit_options = own({.strategy = Strategy::kReplicate})}},
      {.ranks = 4, .options = {.units = by_type<torch::nn::LayerNorm>()}},
  };
  const auto planned = [&](Planner* planner, const PlanRequest& request) -> StepPlan {
    try {
      return planner == nullptr ? plan(request, make, planned_loss) : planner->plan(request);
    } catch (const std::exception&) {  // a head's input may have another type than its weights
      return {};
    }
  };
  std::vector<StepPlan> alone;
  for (const PlanRequest& request : requests) alone.push_back(planned(nullptr, request));
  for (size_t first = 0; first < std::size(requests); ++first) {
    CAPTURE(first);
    Planner planner(make, planned_loss);
    planned(&planner, requests[first]);
    for (size_t i = 0; i < std::size(requests); ++i) {
      CAPTURE(i);
      const StepPlan later = planned(&planner, requests[i]);
      check_same(later.memory, alone[i].memory);
      CHECK((later.traffic == alone[i].traffic));
      CHECK((later.torch == alone[i].torch));
      CHECK(later.units == alone[i].units);
    }
  }
}

TEST_CASE("a planner runs the step anew only where LibTorch would meet something else") {
  int steps = 0;
  Planner planner(small_chain, [&](Unit<Chain>& model) {
    ++steps;
    return planned_loss(model);
  });
  const auto runs = [&](const PlanRequest& request) {
    const int before = steps;
    planner.plan(request);
    return steps > before;
  };
  CHECK(runs({.ranks = 2}));
  CHECK_FALSE(runs({.ranks = 2}));
  CHECK_FALSE(runs({.ranks = 64, .ranks_per_host = 8, .maps_shards = true}));
  CHECK_FALSE(runs({.ranks = 4, .options = {.strategy = Strategy::kZero2}}));
  CHECK_FALSE(runs({.ranks = 4,
                    .options = {.reshard_after_forward = false, .prefetch_units = 0},
                    .optimizer = OptimizerKind::kSgdMomentum}));
  CHECK_FALSE(runs({.ranks = 4, .options = {.keep_last_units = 1, .cpu_offload = true}}));
  CHECK_FALSE(runs({.ranks = 4, .options = {.optimizer_in_backward = true}}));
  CHECK(runs({.ranks = 4, .options = {.recompute = 1}}));
  CHECK_FALSE(runs({.ranks = 8, .options = {.recompute = 1}}));
  CHECK(runs({.ranks = 4, .options = {.seed = 1}}));  // no rule ignores the seed
}

TEST_CASE("a planner's later plans are what a plan of its own would be") {
  Planner planner(small_chain, planned_loss);
  const MeshShape shapes[] = {{1, 1}, {1, 2}, {1, 3}, {2, 3}};
  const auto check = [&](const MeshShape& shape, const Options& options) {
    CAPTURE(shape.replicate);
    CAPTURE(shape.shard);
    CAPTURE(static_cast<int>(options.strategy));
    CAPTURE(options.recompute);
    CAPTURE(options.cpu_offload);
    const PlanRequest request{.ranks = shape.size(Axis::kWorld),
                              .mesh = {.shard = shape.shard, .replicate = shape.replicate},
                              .options = options};
    const StepPlan later = planner.plan(request);
    const StepPlan own = plan(request, small_chain, planned_loss);
    check_same(later.memory, own.memory);
    CHECK((later.traffic == own.traffic));
    CHECK((later.torch == own.torch));
    CHECK(later.parameters == own.parameters);
  };
  for (const Strategy strategy : kAllStrategies) {
    for (const MeshShape& shape : shapes) {
      for (const int recompute : {0, 1}) {
        for (const bool offload : {false, true}) {
          check(shape, {.recompute = recompute, .cpu_offload = offload, .strategy = strategy});
        }
      }
      check(shape,
            {.mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kBFloat16},
             .strategy = strategy});
    }
  }
}
