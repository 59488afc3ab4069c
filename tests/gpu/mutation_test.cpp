// Leaves out each wait and each event record of the engine in turn. The simulated GPU must report
// it every time.
#include <fmt/format.h>
#include <fsdp/optim.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/mesh_state.h"
#include "engine/support/main_copies.h"
#include "engine/support/twin.h"
#include "optim/support/ordered_trainings.h"
#include "plan/placement.h"
#include "simulator/torch/simulated_ranks.h"
#include "support/long_run.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kFrozen = 4;  // index of the frozen unit

struct Seen {
  std::set<std::string> reports, waits, records;
};

// Runs a reduction within groups. The next backward sums it over the groups, together with its own
// gradients. Then it reduces within groups again. This time the user changes the gradients, and a
// backward that reaches no parameter sums them over the groups.
void train_in_parts(torch::nn::Module& model, Engine& engine, int rank) {
  const auto reduce_inside = [&] {
    const GradSync inside(engine, GradientSync::kInside);
    graph_loss(model, 1, rank).backward();
  };
  reduce_inside();
  graph_loss(model, 2, rank).backward();
  engine.zero_grad();
  reduce_inside();
  for (const ShardedParameter& each : engine.sharded_parameters()) {
    if (each.local.grad().defined()) each.local.grad().mul_(0.5);
  }
  const at::Tensor x = values({2, 6}, 1 + rank).requires_grad_();
  dynamic_cast<GraphImpl&>(model).units[kFrozen](x).sum().backward();
}

// Trains with the calls that users make between and in steps. Their order makes every wait
// necessary at least once.
void train(torch::nn::Module& model, Engine& engine, int rank) {
  if (engine.options().optimizer_in_backward) return train_in_backward(model, engine, rank);
  AdamW optimizer(engine, {.lr = 1e-2});
  MainCopies copies(engine);
  for (int step = 0; step < 3; ++step) {
    {
      const GradSync keep(engine, false);
      graph_loss(model, step, rank).backward();
    }
    graph_loss(model, step + 1, rank).backward();
    graph_loss(model, step + 2, rank).backward();  // adds to the reduced gradients
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    copies.make();
    if (step == 0) graph_loss(model, 3, rank).backward();  // no zero_grad in between
    optimizer.zero_grad();
    CHECK_THROWS_WITH(failing_loss(model, rank).backward(), "thrown");
    engine.zero_grad();
    graph_loss(model, 3, rank).backward();
    engine.clip_grad_norm(1e-3);
    optimizer.step();
    copies.make();
    optimizer.zero_grad();
    CHECK_THROWS_WITH(failing_loss(model, rank).backward(), "thrown");
    engine.zero_grad();
    for (ShardedParameter& each : engine.sharded_parameters()) each.local.data().mul_(0.5);
    engine.average_buffers();
    const torch::NoGradGuard no_grad;
    graph_loss(model, 4, rank);
    copies.make();
    const Gathered whole(engine, WriteBack::kFromRankZero);
    model.named_parameters()["u1.weight"].mul_(0.5);
  }
  engine.visit_full_parameters([](std::string_view, const at::Tensor& value) { value.sum(); });
  train_in_parts(model, engine, rank);
}

// Returns all kinds of options, for two ranks or for two groups of two ranks.
std::vector<Options> every_kind() {
  std::vector<Options> kinds;
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kZero2, Strategy::kZero1,
                                  Strategy::kReplicate, Strategy::kHybridShard}) {
    for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
      kinds.push_back({.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
                       .prefetch_units = dtype == torch::kBFloat16 ? 2 : 1,
                       .strategy = strategy,
                       .debug = dtype == torch::kBFloat16});
    }
  }
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHybridShard}) {
    kinds.push_back({.prefetch_units = 2, .cpu_offload = true, .strategy = strategy});
  }
  for (const bool offloads : {false, true}) {
    kinds.push_back({.cpu_offload = offloads, .optimizer_in_backward = true});
  }
  return kinds;
}

Seen run(const Options& options, uint32_t seed, const MutatedPlace& mutated = {}) {
  const int groups = options.strategy == Strategy::kHybridShard ? 2 : 1;
  const auto session =
      std::make_shared<SimulatedSession>(SimulatedRanksOptions{.simulation = {.seed = seed}});
  session->device.mutate(mutated);
  RunRanksOptions ranks = on_simulated_gpu(session);
  ranks.mesh.replicate = groups;
  Seen seen;
  const auto errors = errors_of_ranks(
      2 * groups,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(5, 6, body_for(options)).make);
        for (const at::Tensor& frozen :
             dynamic_cast<GraphImpl&>(*model).units[kFrozen]->parameters()) {
          frozen.set_requires_grad(false);
        }
        model->register_buffer("average", torch::ones({5}));
        Engine engine(model, mesh, options);
        train(*model, engine, mesh.rank());
      },
      ranks);
  for (const std::string& error : errors) {
    if (!error.empty()) seen.reports.insert(error);
  }
  for (const std::string& each : session->gpu.take_reports()) seen.reports.insert(each);
  seen.waits = session->device.waits();
  seen.records = session->device.records();
  return seen;
}

// Returns the GPU's report. Any rank may have thrown it.
std::string first_line(const std::set<std::string>& reports) {
  for (std::string text : reports) {
    if (const size_t at = text.find("reports: "); at != std::string::npos) text.erase(0, at + 9);
    if (text.find(" gave up") == std::string::npos) return text.substr(0, text.find('\n'));
  }
  return reports.empty() ? "nothing" : reports.begin()->substr(0, reports.begin()->find('\n'));
}

// Returns the first report. A training with some options reports nothing, because it does not reach
// the place or needs no order there.
std::string objection(const MutatedPlace& mutated) {
  for (const Options& options : every_kind()) {
    const Seen seen = run(options, 1, mutated);
    if (!seen.reports.empty()) return first_line(seen.reports);
  }
  return "nothing";
}

void expect_objection(std::string_view what, MutatedPlace mutated) {
  std::string found = objection(mutated);
  const bool is_early = mutated.mutation == Mutation::kRecordEarly;
  for (; is_early && found == "nothing" && mutated.marks_early < 4; ++mutated.marks_early) {
    found = objection(mutated);
  }
  MESSAGE(fmt::format("{} | {} | {}", what, mutated.place, found));
  CHECK_MESSAGE(found != "nothing", what << " at " << mutated.place);
}

// Returns the places at which streams wait and record, for all options. Without a mutation the
// simulated GPU must report nothing.
Seen everywhere(uint32_t seed) {
  Seen all;
  for (const Options& options : every_kind()) {
    const Seen seen = run(options, seed);
    CAPTURE(name_of(options.strategy));
    CAPTURE(options.cpu_offload);
    CAPTURE(seed);
    for (const std::string& each : seen.reports) FAIL_CHECK(each);
    all.waits.insert(seen.waits.begin(), seen.waits.end());
    all.records.insert(seen.records.begin(), seen.records.end());
  }
  // These are the waits 1 to 3 (at three places), 5, 6, 7 (at two places), 9, 10, 12 to 14, 16, 18
  // to 21, 22 (at five places) and 23 of docs/streams.md, and one wait of thread ranks. A smaller
  // number means that this test no longer proves some wait. A larger number means that the page
  // lacks a new wait.
  CHECK(all.waits.size() == 26);
  return all;
}

}  // namespace

TEST_CASE("with every wait and record in its place the simulated GPU reports nothing") {
  for (uint32_t seed = 1; seed <= (is_long_run() ? 3 : 1); ++seed) everywhere(seed);
}

// Takes half a minute for its 26 waits, so it runs only in tools/test sim.
TEST_CASE("a wait that is left out is objected to" * doctest::skip(!is_long_run())) {
  const Seen all = everywhere(/*seed=*/1);
  for (const std::string& place : all.waits) {
    expect_objection("wait left out", {Mutation::kWaitLeftOut, place});
  }
}

// Takes minutes, so it runs only in tools/test sim.
TEST_CASE("an event that is not recorded, or early, is objected to" *
          doctest::skip(!is_long_run())) {
  const Seen all = everywhere(/*seed=*/1);
  for (const std::string& place : all.records) {
    expect_objection("record left out", {Mutation::kRecordLeftOut, place});
    expect_objection("recorded early", {Mutation::kRecordEarly, place});
  }
}
