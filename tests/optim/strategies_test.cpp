// Tests the strategies, which are rows of a table. Strategies may differ only in the bytes that a
// training step sends.
#include <fsdp/optim.h>

#include <map>

#include "engine/support/twin.h"
#include "plan/placement.h"
#include "support/collective_log.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kLayers = 3;
constexpr int64_t kUnits = kLayers + 1;

// Returns the collectives of a step. The root stays unsharded from forward to backward. One
// all_reduce belongs to the norm.
CollectiveCounts expected_step(Strategy strategy, const MeshShape& shape) {
  if (shape.size(Axis::kWorld) == 1) return {};
  switch (strategy) {
    case Strategy::kZero2:
      return {{"all_gather", kUnits}, {"reduce_scatter", kUnits}, {"all_reduce", 1}};
    case Strategy::kZero1:
      return {{"all_gather", kUnits}, {"all_reduce", kUnits + 1}};
    case Strategy::kReplicate:
      return {{"all_reduce", kUnits}};
    case Strategy::kHybridShard:
      if (!shape.has_two_axes()) break;
      return {
          {"all_gather", kUnits + kLayers}, {"reduce_scatter", kUnits}, {"all_reduce", kUnits + 1}};
    case Strategy::kHfsdp:
    case Strategy::kHpz:
      if (!shape.has_two_axes()) break;
      return {
          {"all_gather", 2 * kUnits + kLayers}, {"reduce_scatter", 2 * kUnits}, {"all_reduce", 1}};
    case Strategy::kFullShard:
      break;
  }
  return {{"all_gather", kUnits + kLayers}, {"reduce_scatter", kUnits}, {"all_reduce", 1}};
}

// Returns the gathers of two evaluations after a step.
std::vector<int64_t> expected_gathers(Strategy strategy, const MeshShape& shape) {
  if (shape.size(Axis::kWorld) == 1 || strategy == Strategy::kReplicate) return {0, 0};
  const bool stay = strategy == Strategy::kZero2 || strategy == Strategy::kZero1;
  if (stay) return {kUnits, 0};
  const bool in_pieces = strategy == Strategy::kHfsdp || strategy == Strategy::kHpz;
  return {shape.has_two_axes() && in_pieces ? 2 * kUnits : kUnits, kUnits};
}

}  // namespace

TEST_CASE("a step issues what its row says, evaluation in between only what has changed") {
  for (const Strategy strategy : kAllStrategies) {
    for (const MeshShape& shape : {MeshShape{1, 1}, MeshShape{1, 2}, MeshShape{1, 3},
                                   MeshShape{2, 2}, MeshShape{2, 3}, MeshShape{3, 2}}) {
      for (const int prefetch : {0, 1, 2}) {
        // On one axis, the strategies of groups equal full shard. On two axes, the others behave as
        // on one axis. One prefetch depth is enough for both.
        if (shape.has_two_axes() != is_by_groups(strategy) && prefetch != 1) continue;
        if (shape.has_two_axes() && prefetch != shape.shard - 1) continue;
        CAPTURE(name_of(strategy));
        CAPTURE(shape.replicate);
        CAPTURE(shape.shard);
        CAPTURE(prefetch);
        run_torch_ranks(shape, [&](Mesh mesh) {
          const auto model = build_seeded(7, graph_twin(kLayers, 6, in_a_row).make);
          Engine engine(model, mesh, {.prefetch_units = prefetch, .strategy = strategy});
          AdamW optimizer(engine, {.lr = 1e-2});
          const CollectiveLog collectives(mesh);
          for (int step = 0; step < 3; ++step) {
            const size_t before = collectives.size();
            graph_loss(*model, step, mesh.rank()).backward();
            optimizer.clip_grad_norm(1.0);
            optimizer.step();
            optimizer.zero_grad();
            CHECK(collectives.counts_since(before) == expected_step(strategy, shape));
          }
          const torch::NoGradGuard no_grad;
          std::vector<int64_t> gathers;
          for (int pass = 0; pass < 2; ++pass) {
            const int64_t before = engine.stats().all_gathers;
            graph_loss(*model, 9, mesh.rank());
            gathers.push_back(engine.stats().all_gathers - before);
          }
          CHECK(gathers == expected_gathers(strategy, shape));
        });
      }
    }
  }
}

namespace {

// The bytes of a model's parameters in fp32 with padding, for all units and for the root.
struct WholeBytes {
  std::vector<int64_t> units;
  int64_t all = 0, root = 0;
};

WholeBytes whole_bytes(Engine& engine) {
  WholeBytes bytes;
  for (const auto& unit : state_of(engine).model.units) {
    bytes.units.push_back(0);
    for (const SegmentLayout& segment : unit->shard->layout().segments()) {
      bytes.units.back() += segment.numel * size_of(DType::kFloat32);
    }
    bytes.all += bytes.units.back();
  }
  bytes.root = bytes.units.front();
  return bytes;
}

int64_t all_reduce_bytes(const WholeBytes& bytes, int over, int cut) {
  int64_t sum = 0;
  for (const int64_t unit : bytes.units) {
    sum += (2 * (over - 1) * (unit / cut) + over - 1) / over;
  }
  return sum;
}

// Returns the expected bytes, by docs/memory.md. A gather or reduce_scatter of Ψ bytes over n ranks
// sends (n - 1)/n of them. Units are gathered for forward and again for backward. The root is
// gathered once.
Traffic expected_traffic(Strategy strategy, const MeshShape& shape, const WholeBytes& bytes) {
  const auto ring = [](int64_t tensor, int ranks) { return tensor / ranks * (ranks - 1); };
  const int world = shape.size(Axis::kWorld), inside = shape.shard, groups = shape.replicate;
  const int64_t for_use = 2 * bytes.all - bytes.root;
  constexpr int64_t kForUse = kUnits + kLayers;
  switch (shape.has_two_axes() || !is_by_groups(strategy) ? strategy : Strategy::kFullShard) {
    case Strategy::kZero2:
      return {.world = {kUnits, ring(bytes.all, world), kUnits, ring(bytes.all, world)}};
    case Strategy::kZero1:
      return {.world = {kUnits, ring(bytes.all, world), kUnits, all_reduce_bytes(bytes, world, 1)}};
    case Strategy::kReplicate:
      return {.world = {0, 0, kUnits, all_reduce_bytes(bytes, world, 1)}};
    case Strategy::kHybridShard:
      return {.inside = {kForUse, ring(for_use, inside), kUnits, ring(bytes.all, inside)},
              .across = {0, 0, kUnits, all_reduce_bytes(bytes, groups, inside)}};
    case Strategy::kHfsdp:
    case Strategy::kHpz: {
      const int64_t pieces = ring(bytes.all / inside, groups);
      return {.inside = {kForUse, ring(for_use, inside), kUnits, ring(bytes.all, inside)},
              .across = {kUnits, pieces, kUnits, pieces}};
    }
    case Strategy::kFullShard:
      break;
  }
  return {.world = {kForUse, ring(for_use, world), kUnits, ring(bytes.all, world)}};
}

}  // namespace

TEST_CASE("a step sends the bytes of its row's formula, with main state on the host, too") {
  for (const Strategy strategy : kAllStrategies) {
    for (const MeshShape& shape :
         {MeshShape{1, 2}, MeshShape{1, 3}, MeshShape{2, 2}, MeshShape{2, 3}, MeshShape{3, 2}}) {
      for (const bool offload : {false, true}) {
        if (is_simulated_gpu() && (offload || shape.size(Axis::kWorld) > 4)) continue;
        CAPTURE(name_of(strategy));
        CAPTURE(shape.replicate);
        CAPTURE(shape.shard);
        CAPTURE(offload);
        run_torch_ranks(shape, [&](Mesh mesh) {
          const auto model = build_seeded(7, graph_twin(kLayers, 6, in_a_row).make);
          Engine engine(model, mesh, {.cpu_offload = offload, .strategy = strategy});
          AdamW optimizer(engine, {.lr = 1e-2});
          Traffic sent;
          for (int step = 0; step < 2; ++step) {
            const Traffic before = engine.stats().sent;
            graph_loss(*model, step, mesh.rank()).backward();
            sent = engine.stats().sent - before;
            optimizer.step();
            optimizer.zero_grad();
          }
          Traffic expected = expected_traffic(strategy, shape, whole_bytes(engine));
          for (const Axis axis : {Axis::kWorld, Axis::kShard, Axis::kReplicate}) {
            CAPTURE(static_cast<int>(axis));
            CHECK(sent.along(axis).gathers == expected.along(axis).gathers);
            CHECK(sent.along(axis).gathered_bytes == expected.along(axis).gathered_bytes);
            CHECK(sent.along(axis).reductions == expected.along(axis).reductions);
            CHECK(sent.along(axis).reduced_bytes == expected.along(axis).reduced_bytes);
          }
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
      CHECK(slice * world == whole);  // divisible for the sizes of this model
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
