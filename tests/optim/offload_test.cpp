// Tests Options::cpu_offload. With main state on the host, the bits must be the same as on the
// device, and the bytes must be those of the plan.
#include <fsdp/optim.h>

#include <vector>

#include "engine/support/twin.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kOffloadSteps = 4;

struct OffloadOutcome {
  std::vector<float> losses;  // all fields are rank 0's
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;
  EngineStats after_backward;  // after the first step's backward, as in the plan
  MemoryPlan plan;
  EngineStats stats;
};

// Runs the backwards of a step. Step 0 has one backward. Later steps have two: both reduce; the
// first keeps its gradients and the second reduces; or the first reduces within groups and the
// second over all ranks.
void backward_of_step(Engine& engine, Unit<Chain>& model, int step, int rank,
                      std::vector<at::Tensor>& losses) {
  const auto run = [&](int batch, GradientSync sync) {
    const GradSync scope(engine, sync);
    const at::Tensor loss = loss_of(model, batch_of(10 * step + batch, rank));
    loss.backward();
    losses.push_back(loss.detach());
  };
  constexpr GradientSync kFirst[] = {GradientSync::kAll, GradientSync::kNone,
                                     GradientSync::kInside};
  if (step > 0) run(0, kFirst[(step - 1) % 3]);
  run(1, GradientSync::kAll);
}

OffloadOutcome train(const MeshShape& shape, const Options& options) {
  OffloadOutcome outcome;
  run_torch_ranks(shape, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
    Engine engine(model, mesh, options);
    AdamW optimizer(engine, {.lr = 1e-2});
    OffloadOutcome here;
    std::vector<at::Tensor> losses;
    std::vector<GradientReport> reports;
    // The test reads nothing before the last step. So the host waits only if the engine makes it
    // wait.
    for (int step = 0; step < kOffloadSteps; ++step) {
      backward_of_step(engine, model, step, mesh.rank(), losses);
      reports.push_back(optimizer.clip_grad_norm(0.5));
      if (step == 0) {
        here.after_backward = engine.stats();
        here.plan = engine.memory_plan();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const at::Tensor& loss : losses) here.losses.push_back(loss.item<float>());
    for (const GradientReport& report : reports) here.norms.push_back(report.norm());
    here.stats = engine.stats();
    here.parameters = full_parameters(engine);
    if (mesh.rank() == 0) outcome = std::move(here);
  });
  return outcome;
}

void check_same(const OffloadOutcome& one, const OffloadOutcome& other) {
  CHECK(one.losses == other.losses);
  CHECK(one.norms == other.norms);
  for (const auto& [fqn, value] : one.parameters) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, other.parameters.at(fqn)));
  }
}

void check_plan(const OffloadOutcome& outcome) {
  const MemoryStats& measured = outcome.after_backward.memory;
  CHECK(measured.in_use == outcome.plan.after_backward);
  CHECK(measured.peak.total() == outcome.plan.peak_bytes());
  CHECK(measured.held_bytes == outcome.plan.held_bytes);
  CHECK(measured.host_in_use == outcome.plan.host_peak);
  CHECK(measured.host_held_bytes == outcome.plan.host_held_bytes);
}

std::vector<MeshShape> shapes_for(Strategy strategy) {
  const bool by_groups =
      std::ranges::find(kGroupStrategies, strategy) != std::end(kGroupStrategies);
  if (is_simulated_gpu()) return {by_groups ? MeshShape{2, 2} : MeshShape{1, 2}};
  std::vector<MeshShape> shapes{{1, 1}, {1, 2}, {1, 3}, {1, 4}};
  if (by_groups) shapes = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {2, 3}, {3, 2}};
  return shapes;
}

// Trains with main state on the device and with main state on the host, and compares.
void check_offload(const MeshShape& shape, Options options) {
  CAPTURE(name_of(options.strategy));
  CAPTURE(shape.replicate);
  CAPTURE(shape.shard);
  CAPTURE(c10::toString(*options.mixed_precision.param_dtype));
  CAPTURE(options.recompute);
  const OffloadOutcome on_device = train(shape, options);
  options.cpu_offload = true;
  const OffloadOutcome on_host = train(shape, options);
  check_same(on_host, on_device);
  check_plan(on_device);
  check_plan(on_host);
  CHECK(on_device.plan.host_peak == MemoryBytes{});
  for (const auto category : {MemoryCategory::kMainShards, MemoryCategory::kMainGradients,
                              MemoryCategory::kOptimizerState}) {
    CAPTURE(name_of(category));
    CHECK(on_host.after_backward.memory.in_use[category] == 0);
    CHECK(on_host.after_backward.memory.host_in_use[category] ==
          on_device.after_backward.memory.in_use[category]);
  }
  const bool cut = shape.size(Axis::kWorld) > 1;
  if (!cut) return;  // if the device holds everything, no gradient is kept for later
  CHECK(on_host.stats.all_gathers == on_device.stats.all_gathers);
  CHECK(on_host.stats.reduces == on_device.stats.reduces);
}

}  // namespace

TEST_CASE("main state on the host: the bits are those without, and the device's bytes are gone") {
  for (const Strategy strategy : kAllStrategies) {
    for (const MeshShape& shape : shapes_for(strategy)) {
      for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
        const bool is_narrow = dtype == torch::kBFloat16;
        for (const int recompute : {0, is_narrow ? 2 : 1}) {
          const bool is_recomputed = recompute > 0;
          if (is_simulated_gpu() && is_recomputed != is_narrow) continue;
          if (is_simulated_gpu() && is_narrow && strategy != Strategy::kHfsdp) continue;
          check_offload(
              shape,
              {.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
               .recompute = recompute,
               .strategy = strategy,
               .debug = true,
               .tuning = {
                   .cpu_streams =
                       every_stream_kind()[is_narrow ? 0 : every_stream_kind().size() - 1]}});
        }
      }
    }
  }
}

TEST_CASE("one rank with main state on the host holds the units in flight and nothing else") {
  const OffloadOutcome outcome = train({1, 1}, {.cpu_offload = true});
  CHECK(outcome.plan.rest.total() == 0);
  CHECK(outcome.plan.forward_peak[MemoryCategory::kParameterSlots] > 0);
  CHECK(outcome.plan.host_rest.total() > 0);
}

TEST_CASE("plain optimizers step on the host's shards, and see their gradients") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kZero1, Strategy::kReplicate}) {
    for (const int world : {1, 2}) {
      CAPTURE(name_of(strategy));
      CAPTURE(world);
      Twin twin = graph_twin(3, 6, in_a_row);
      twin.optimizer = TwinOptimizer::kAdam;
      for (const CpuStreamKind streams : every_stream_kind()) {
        const Options on_host{
            .cpu_offload = true, .strategy = strategy, .tuning = {.cpu_streams = streams}};
        check_same_bits(train_sharded(twin, world, on_host), train_plain(twin, world));
        twin.optimizer = TwinOptimizer::kSgd;
      }
    }
  }
}

TEST_CASE("shards on the host are tensors of the CPU, whole parameters are the device's") {
  run_torch_ranks(2, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
    Engine engine(model, mesh, {.cpu_offload = true});
    for (const ShardedParameter& parameter : engine.sharded_parameters()) {
      CHECK(parameter.local.device() == at::Device(at::kCPU));
    }
    engine.visit_full_parameters([&](std::string_view, const at::Tensor& value) {
      CHECK(value.device() == engine.device());
    });
  });
}

TEST_CASE("what is written while gathered reaches the host's shards of every rank that has them") {
  for (const auto& [strategy, shape] : {std::pair{Strategy::kFullShard, MeshShape{1, 2}},
                                        {Strategy::kZero2, MeshShape{1, 2}},
                                        {Strategy::kReplicate, MeshShape{1, 2}},
                                        {Strategy::kHybridShard, MeshShape{2, 2}},
                                        {Strategy::kFullShard, MeshShape{1, 1}}}) {
    CAPTURE(name_of(strategy));
    run_torch_ranks(shape, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
      Engine engine(model, mesh, {.cpu_offload = true, .strategy = strategy});
      {
        const Gathered gathered(engine, WriteBack::kOwnSlice);
        const torch::NoGradGuard no_grad;
        for (const at::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
      }
      for (const auto& [fqn, value] : full_parameters(engine)) {
        CAPTURE(fqn);
        CHECK(value.eq(0.5).all().item<bool>());
      }
      const torch::NoGradGuard no_grad;
      const at::Tensor before = model(batch_of(0, 0).tokens).clone();
      const auto views = engine.sharded_parameters();
      for (const ShardedParameter& parameter : views) parameter.local.mul_(2);
      CHECK_FALSE(bit_equal(model(batch_of(0, 0).tokens), before));
      for (const auto& [fqn, value] : full_parameters(engine)) {
        CAPTURE(fqn);
        CHECK(value.eq(1.0).all().item<bool>());
      }
    });
  }
}

TEST_CASE("a non-finite gradient on one rank skips the host's step on all") {
  run_torch_ranks(2, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
    Engine engine(model, mesh, {.cpu_offload = true});
    AdamW optimizer(engine, {.lr = 1e-2});
    const auto before = full_parameters(engine);
    const float scale = mesh.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
    (loss_of(model, batch_of(0, mesh.rank())) * scale).backward();
    const StepReport report = optimizer.step();
    CHECK(report.skipped());
    CHECK(report.gradients.first_nonfinite() != "");
    CHECK(optimizer.steps() == 0);
    optimizer.zero_grad();
    for (const auto& [fqn, value] : full_parameters(engine)) {
      CHECK(bit_equal(value, before.at(fqn)));
    }
  });
}
