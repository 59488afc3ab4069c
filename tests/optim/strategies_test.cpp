// A strategy is a row: what a training step sends in each of them, and that nothing else differs.
#include <fsdp/optim.h>

#include <map>
#include <sstream>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kLayers = 3;
constexpr int64_t kUnits = kLayers + 1;

using Counts = std::map<std::string, int64_t>;

// Collectives by operation since `from` entries.
Counts counts_since(const Mesh& mesh, size_t from) {
  Counts counts;
  const std::vector<std::string> all = mesh.state().order().recent();
  for (size_t i = from; i < all.size(); ++i) {
    std::istringstream line(all[i]);
    std::string number, operation;
    line >> number >> operation;
    ++counts[operation];
  }
  return counts;
}

Counts expected_step(Strategy strategy, int world) {
  if (world == 1) return {};
  switch (strategy) {
    case Strategy::kFullShard:  // the root stays from forward to backward
      return {{"all_gather", kUnits + kLayers}, {"reduce_scatter", kUnits}, {"all_reduce", 1}};
    case Strategy::kZero2:
      return {{"all_gather", kUnits}, {"reduce_scatter", kUnits}, {"all_reduce", 1}};
    case Strategy::kZero1:
      return {{"all_gather", kUnits}, {"all_reduce", kUnits + 1}};
    case Strategy::kReplicate:
      return {{"all_reduce", kUnits}};
  }
  return {};
}

}  // namespace

TEST_CASE("a step issues what its row says, evaluation in between only what has changed") {
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 3}) {
      for (const int prefetch : {0, 1, 2}) {
        CAPTURE(name_of(strategy));
        CAPTURE(world);
        CAPTURE(prefetch);
        run_torch_ranks(world, [&](Mesh mesh) {
          const auto model = build_seeded(7, graph_twin(kLayers, 6, in_a_row).make);
          Engine engine(model, mesh, {.prefetch_units = prefetch, .strategy = strategy});
          AdamW optimizer(engine, {.lr = 1e-2});
          mesh.state().order().keep_all();
          for (int step = 0; step < 3; ++step) {
            const size_t before = mesh.state().order().recent().size();
            graph_loss(*model, step, mesh.rank()).backward();
            optimizer.clip_grad_norm(1.0);
            optimizer.step();
            optimizer.zero_grad();
            CHECK(counts_since(mesh, before) == expected_step(strategy, world));
          }
          const torch::NoGradGuard no_grad;
          std::vector<int64_t> gathers;
          for (int pass = 0; pass < 2; ++pass) {
            const int64_t before = engine.stats().all_gathers;
            graph_loss(*model, 9, mesh.rank());
            gathers.push_back(engine.stats().all_gathers - before);
          }
          const bool each_use = strategy == Strategy::kFullShard && world > 1;
          const bool never = strategy == Strategy::kReplicate || world == 1;
          CHECK(gathers == (each_use ? std::vector<int64_t>{kUnits, kUnits}
                            : never  ? std::vector<int64_t>{0, 0}
                                     : std::vector<int64_t>{kUnits, 0}));
        });
      }
    }
  }
}

TEST_CASE("bytes by row: what is cut over the ranks, and what every rank has whole") {
  for (const int world : {2, 4}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      std::map<Strategy, MemoryBytes> bytes;
      for (const Strategy strategy : kStrategies) {
        const auto model = build_seeded(7, graph_twin(kLayers, 64, in_a_row).make);
        Engine engine(model, mesh, {.strategy = strategy});
        AdamW optimizer(engine, {.lr = 1e-2});
        graph_loss(*model, 0, mesh.rank()).backward();
        bytes[strategy] = engine.stats().memory.in_use;
      }
      const auto of = [&](Strategy strategy, MemoryCategory category) {
        return bytes.at(strategy)[category];
      };
      const int64_t whole = of(Strategy::kReplicate, MemoryCategory::kMainShards);
      const int64_t slice = of(Strategy::kFullShard, MemoryCategory::kMainShards);
      CHECK(slice * world == whole);  // sizes of this model divide
      for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero1}) {
        CAPTURE(name_of(strategy));
        CHECK(of(strategy, MemoryCategory::kMainShards) == slice);
        CHECK(of(strategy, MemoryCategory::kResidentParameters) == whole - slice);
        CHECK(of(strategy, MemoryCategory::kOptimizerState) == 2 * slice);
      }
      CHECK(of(Strategy::kFullShard, MemoryCategory::kMainGradients) == slice);
      CHECK(of(Strategy::kZero2, MemoryCategory::kMainGradients) == slice);
      CHECK(of(Strategy::kZero1, MemoryCategory::kMainGradients) == whole);
      CHECK(of(Strategy::kReplicate, MemoryCategory::kMainGradients) == whole);
    });
  }
}
