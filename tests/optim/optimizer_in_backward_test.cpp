// Tests that an update in backward (Options::optimizer_in_backward) has the bits of an update in
// step().
#include <fsdp/ema.h>
#include <fsdp/lr_scheduler.h>
#include <fsdp/recompute.h>

#include "engine/support/main_copies.h"
#include "engine/support/tied_models.h"
#include "optim/support/same_parameters.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using MakeWithSkips = std::function<std::unique_ptr<Optimizer>(Engine& engine, bool skips)>;

constexpr int kStepsInBackward = 3;

template <class Made, class MadeOptions>
MakeWithSkips maker(MadeOptions options) {
  return [options](Engine& engine, bool skips) {
    MadeOptions own = options;
    own.skip_nonfinite = skips;
    return std::make_unique<Made>(engine, own);
  };
}

const MakeWithSkips kAdamW = maker<AdamW>(AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});

// Calls the first unit twice, with another unit in between.
at::Tensor one_twice(GraphImpl& graph, const at::Tensor& x) {
  const at::Tensor h = torch::tanh(graph.units[1](torch::tanh(graph.units[0](x))));
  return graph.norm(graph.units[2](torch::tanh(graph.units[0](h))));
}

// Does the same, and recomputes each call of the first unit on its own.
at::Tensor one_recomputed_twice(GraphImpl& graph, const at::Tensor& x) {
  const auto call = [&](const at::Tensor& in) { return torch::tanh(graph.units[0](in)); };
  const at::Tensor h = torch::tanh(graph.units[1](recompute(call, x)));
  return graph.norm(graph.units[2](recompute(call, h)));
}

// Calls the first unit three times in the first step, and twice in the other steps. So a step
// expects a use that does not come.
at::Tensor less_often(GraphImpl& graph, const at::Tensor& x) {
  const at::Tensor h = one_twice(graph, x);
  return graph.step == 0 ? torch::tanh(graph.units[0](h)) : h;
}

Parameters train(const Twin& twin, const MeshShape& shape, Options options, bool in_backward,
                 const MakeWithSkips& make) {
  options.optimizer_in_backward = in_backward;
  Parameters result;
  run_torch_ranks(shape, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, options);
    const auto optimizer = make(engine, /*skips=*/!in_backward);
    for (int step = 0; step < kStepsInBackward; ++step) {
      twin.loss(*model, step, mesh.rank()).backward();
      CHECK_FALSE(optimizer->step().skipped());
      optimizer->zero_grad();
    }
    CHECK(optimizer->steps() == kStepsInBackward);
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) result = std::move(parameters);
  });
  return result;
}

void check_both_ways(const Twin& twin, const MeshShape& shape, const Options& options,
                     const MakeWithSkips& make = kAdamW) {
  CAPTURE(shape.replicate);
  CAPTURE(shape.shard);
  CAPTURE(name_of(options.strategy));
  CAPTURE(options.cpu_offload);
  CAPTURE(options.recompute);
  check_same_bits(train(twin, shape, options, /*in_backward=*/true, make),
                  train(twin, shape, options, /*in_backward=*/false, make));
}

}  // namespace

TEST_CASE("every strategy and type has the bits of an update in step()") {
  const Twin twin = graph_twin(3, 6, in_a_row);
  int number = 0;
  for (const int world : {1, 2, 3}) {
    for (const Strategy strategy : kStrategies) {
      for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
        if (!is_tried(++number, 3)) continue;
        check_both_ways(twin, {.shard = world},
                        {.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
                         .prefetch_units = world,
                         .strategy = strategy,
                         .debug = true,
                         .tuning = {.cpu_streams = number % 2 == 0 ? CpuStreamKind::kThreaded
                                                                   : CpuStreamKind::kInline}});
      }
    }
  }
  for (const Strategy strategy : kGroupStrategies) {
    for (const MeshShape& shape : kGroupShapes) {
      if (!is_tried(++number, 3)) continue;
      check_both_ways(twin, shape, {.strategy = strategy, .debug = true});
    }
  }
}

TEST_CASE("offload, recomputation, kept units and zero-copy gradients do, too") {
  const Twin twin = graph_twin(3, 6, in_a_row);
  for (const int world : {1, 2, 3}) {
    if (!is_tried(world)) continue;
    for (const auto streams : every_stream_kind()) {
      check_both_ways(twin, {.shard = world},
                      {.cpu_offload = true, .tuning = {.cpu_streams = streams}});
    }
    check_both_ways(twin, {.shard = world}, {.recompute = 1, .debug = true});
    check_both_ways(twin, {.shard = world}, {.keep_last_units = 2, .recompute = 2});
    check_both_ways(twin, {.shard = world}, {.reshard_after_forward = false});
    check_both_ways(lending_twin(), {.shard = world}, {});
  }
}

TEST_CASE("all optimizers without a norm of all parameters update in backward") {
  const Twin twin = graph_twin(3, 6, in_a_row);
  const MeshShape shape{.shard = 2};
  check_both_ways(twin, shape, {}, maker<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9}));
  check_both_ways(twin, shape, {}, maker<SGD>(SgdOptions{.lr = 0.1}));
  check_both_ways(twin, shape, {}, maker<RAdam>(RAdamOptions{}));
  check_both_ways(twin, shape, {}, maker<Lion>(LionOptions{}));
  const Options in_blocks{.shard_granule = AdamW8bit::kBlockNumel};
  check_both_ways(graph_twin(2, 70, in_a_row), shape, in_blocks,
                  maker<AdamW8bit>(AdamW8bitOptions{}));
  const std::vector<ParameterGroup> groups{
      {.match = is_bias_or_norm, .weight_decay = 0.0, .lr_scale = 2.0}};
  check_both_ways(twin, shape, {}, maker<AdamW>(AdamWOptions{.lr = 1e-2, .groups = groups}));
}

TEST_CASE("a unit with several calls is updated once, after its last reduction") {
  for (const auto body : {one_twice, one_recomputed_twice, less_often}) {
    const Twin twin = graph_twin(3, 6, body);
    for (const int world : {1, 2, 3}) {
      if (!is_tried(world)) continue;
      check_both_ways(twin, {.shard = world}, {.prefetch_units = 2, .debug = true});
      check_both_ways(twin, {.shard = world}, {.strategy = Strategy::kZero2, .debug = true});
      check_both_ways(twin, {.shard = world}, {.cpu_offload = true});
    }
  }
}

TEST_CASE("tied parameters are updated once") {
  for (const int world : {1, 2}) {
    check_both_ways(tied_twin<Tied>(), {.shard = world}, {.debug = true});
    check_both_ways(tied_twin<TiedAcross>(), {.shard = world}, {.debug = true});
  }
}

TEST_CASE("two forwards before a backward, and frozen and untrained parameters") {
  Twin twin = graph_twin(3, 6, in_a_row);
  twin.make = [] {
    Unit<Graph> model(3, 6, in_a_row);
    model->units[1]->weight.set_requires_grad(false);
    return model.ptr();
  };
  twin.loss = [](torch::nn::Module& model, int step, int rank) {
    return graph_loss(model, step, rank) + graph_loss(model, step + 5, rank);
  };
  const MakeWithSkips of_units = maker<AdamW>(AdamWOptions{
      .parameters = [](const ShardedParameter& each) { return each.fqn != "u2.bias"; }});
  for (const int world : {1, 2}) {
    check_both_ways(twin, {.shard = world}, {}, of_units);
    check_both_ways(twin, {.shard = world}, {.strategy = Strategy::kReplicate}, of_units);
  }
}

TEST_CASE("schedulers, averages, unfreezing and copies of main state keep their results") {
  const auto run = [](Mesh mesh, bool in_backward) {
    const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
    auto& graph = dynamic_cast<GraphImpl&>(*model);
    for (const at::Tensor& each : graph.units[1]->parameters()) each.set_requires_grad(false);
    Engine engine(model, mesh, {.optimizer_in_backward = in_backward});
    AdamW optimizer(engine, {.lr = 1e-2, .skip_nonfinite = !in_backward});
    OneCycleLR scheduler(optimizer, {.max_lr = 0.05, .total_steps = 8});
    Ema ema(engine, {.decay = 0.5});
    MainCopies copies(engine);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        for (const at::Tensor& each : graph.units[1]->parameters()) each.set_requires_grad(true);
      }
      copies.make();
      graph_loss(*model, step, mesh.rank()).backward();
      const StepReport report = optimizer.step();
      scheduler.step();
      ema.update(report);
      optimizer.zero_grad();
    }
    const AveragedWeights averaged(ema);
    return full_parameters(engine);
  };
  run_torch_ranks(2, [&](Mesh mesh) { check_same_bits(run(mesh, true), run(mesh, false)); });
}
