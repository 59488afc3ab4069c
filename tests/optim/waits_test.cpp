// Tests every wait of docs/streams.md on streams that check the order of their work. With all
// waits, all work must be ordered. If one wait is left out, the check must find it.
#include <fmt/format.h>
#include <fsdp/ema.h>
#include <fsdp/optim.h>

#include <map>
#include <set>
#include <string>

#include "comm/mesh_state.h"
#include "engine/support/main_copies.h"
#include "engine/support/twin.h"
#include "kernels/fill.h"
#include "optim/support/ordered_trainings.h"
#include "plan/placement.h"
#include "simulator/checked_mesh.h"
#include "simulator/operator_work.h"
#include "simulator/watched_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Words = std::set<std::string>;

struct Seen {
  Words found, places;
};

// Trains with the calls that users make between and in steps. Their order makes every wait
// necessary at least once.
void train(torch::nn::Module& model, Engine& engine, int rank) {
  if (engine.options().optimizer_in_backward) return train_in_backward(model, engine, rank);
  AdamW optimizer(engine, {.lr = 1e-2});
  MainCopies copies(engine);
  Ema ema(engine);
  for (int step = 0; step < 2; ++step) {
    {
      const GradSync keep(engine, false);
      graph_loss(model, step, rank).backward();
    }
    graph_loss(model, step + 1, rank).backward();
    graph_loss(model, step + 2, rank).backward();  // adds to the gradients that were reduced
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    copies.make();
    if (step == 0) graph_loss(model, 3, rank).backward();  // no zero_grad in between
    optimizer.zero_grad();
    CHECK_THROWS_WITH(failing_loss(model, rank).backward(), "thrown");
    engine.zero_grad();
    copies.make();
    for (ShardedParameter& each : engine.sharded_parameters()) each.local.data().mul_(0.5);
    graph_loss(model, 3, rank).backward();
    engine.clip_grad_norm(1e-3);
    copies.make();
    optimizer.step();
    optimizer.zero_grad();
    const torch::NoGradGuard no_grad;
    graph_loss(model, 4, rank);
    copies.make();
    { const AveragedWeights averaged(ema); }
    copies.make();
    const Gathered whole(engine, WriteBack::kFromRankZero);
    model.named_parameters()["u1.weight"].mul_(0.5);
  }
  engine.visit_full_parameters([](std::string_view, const at::Tensor& value) { value.sum(); });
}

std::vector<Options> every_kind() {
  std::vector<Options> kinds;
  for (const Strategy strategy : kStrategies) {
    for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
      kinds.push_back({.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
                       .strategy = strategy,
                       .debug = dtype == torch::kBFloat16});
    }
  }
  kinds.push_back({.prefetch_units = 2, .cpu_offload = true});
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    for (const bool offloads : {false, true}) {
      kinds.push_back(
          {.cpu_offload = offloads, .optimizer_in_backward = true, .strategy = strategy});
    }
  }
  return kinds;
}

// Runs two ranks. Returns the findings of both.
Seen run(const Options& options, const std::string& left_out = {}) {
  Seen seen;
  std::mutex mutex;
  std::vector<CheckedRank> ranks = checked_ranks(2);
  std::vector<std::thread> threads;
  at::set_num_threads(1);
  for (CheckedRank& rank : ranks) {
    threads.emplace_back([&, mesh = std::move(rank.mesh), device = rank.device.get()]() mutable {
      torch_ranks_options().in_each_thread();
      device->check().leave_out(left_out);
      {
        const auto model = build_seeded(7, graph_twin(4, 6, body_for(options)).make);
        Engine engine(model, mesh, options);
        const OperatorWork operators(*device);
        train(*model, engine, mesh.rank());
      }
      const std::lock_guard lock(mutex);
      seen.found.merge(device->check().found());
      seen.places.merge(device->check().places());
      const Mesh finished = std::move(mesh);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

}  // namespace

TEST_CASE("with every wait in its place, all work on common memory is in order") {
  for (Options options : every_kind()) {
    for (const auto streams : {CpuStreamKind::kInline, CpuStreamKind::kThreaded}) {
      for (const int prefetch : {0, 1, 2}) {
        CAPTURE(name_of(options.strategy));
        CAPTURE(options.cpu_offload);
        options.tuning.cpu_streams = streams;
        options.prefetch_units = prefetch;
        const Seen seen = run(options);
        for (const std::string& each : seen.found) FAIL_CHECK(each);
      }
    }
  }
}

TEST_CASE("a wait that is left out is found, whichever it is") {
  Words places;
  for (const Options& options : every_kind()) places.merge(run(options).places);
  // These are the waits 1 to 3 (at three places), 5, 6, 7 (at two places), 9, 10, 12 to 14, 18, 19,
  // 21, 22 (at six places) and 23 of docs/streams.md. If the number is smaller, the steps above no
  // longer reach some wait. If it is larger, a new wait must be added here.
  CHECK(places.size() == 24);
  Words unfound;
  for (const std::string& place : places) {
    Words found;
    for (const Options& options : every_kind()) found.merge(run(options, place).found);
    if (found.empty()) unfound.insert(place);
  }
  for (const std::string& each : unfound) FAIL_CHECK(each);
}

TEST_CASE("a test on the checked device fails where its ranks' work is out of order") {
  RunRanksOptions options = torch_ranks_options();
  options.make = make_checked_ranks;
  const auto errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        const Device& device = state_of(mesh).device();
        const Buffer memory = device.allocate(64, MemoryKind::kDevice);
        const kernels::FillRun run{memory.data(), 16, DType::kFloat32};
        const auto beside = device.make_stream({.name = "beside"});
        kernels::fill_zero(*beside, {&run, 1});
        if (mesh.rank() == 0) beside->synchronize();
        kernels::fill_nan(device.compute_stream(), {&run, 1});
        beside->synchronize();
      },
      options);
  CHECK(errors[0].empty());
  CHECK(errors[1] ==
        "out of order: 'fill_nan' on compute writes what 'fill_zero' on beside writes\n");
}
