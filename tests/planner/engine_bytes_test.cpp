#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Make = std::function<Unit<Chain>()>;

Unit<Chain> small_chain() { return Unit<Chain>(16, 4); }

at::Tensor planned_loss(Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); }

StepPlan planned(const MeshShape& shape, const Options& options, const Make& make) {
  const PlanRequest request{.ranks = shape.size(Axis::kWorld),
                            .mesh = {.shard = shape.shard, .replicate = shape.replicate},
                            .options = options};
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

void check_case(const MeshShape& shape, const Options& options, const Make& make = small_chain) {
  CAPTURE(shape.replicate);
  CAPTURE(shape.shard);
  CAPTURE(static_cast<int>(options.strategy));
  CAPTURE(options.recompute);
  CAPTURE(options.cpu_offload);
  CAPTURE(options.prefetch_units);
  const StepPlan plan = planned(shape, options, make);
  run_torch_ranks(shape, [&](Mesh mesh) {
    auto model = build_seeded(7, make);
    Engine engine(model, mesh, options);
    AdamW optimizer(engine, {});
    EngineStats before;
    for (int step = 0; step < 3; ++step) {
      before = engine.stats();
      loss_of(model, batch_of(step, mesh.rank())).backward();
      optimizer.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
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
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          for (const bool offload : {false, true}) {
            check_case({.shard = world}, {.param_dtype = dtype,
                                          .reduce_dtype = dtype,
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
             Options{.param_dtype = DType::kBFloat16},
             Options{.cpu_streams = CpuStreamKind::kThreaded},
             Options{.unit_options =
                         [](std::string_view fqn) {
                           return UnitOptions{.unshard_in_backward = fqn != "embedding"};
                         }},
         }) {
      check_case({.shard = world}, options);
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
      check(shape, {.param_dtype = DType::kBFloat16,
                    .reduce_dtype = DType::kBFloat16,
                    .strategy = strategy});
    }
  }
}
