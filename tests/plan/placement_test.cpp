#include "plan/placement.h"

#include <doctest/doctest.h>

#include <set>

#include "fsdp/error.h"

using namespace fsdp;

namespace {

constexpr AxisCollective kGather{Operation::kAllGather, Axis::kWorld};
constexpr AxisCollective kScatter{Operation::kReduceScatter, Axis::kWorld};
constexpr AxisCollective kSum{Operation::kAllReduce, Axis::kWorld};
constexpr AxisCollective kGatherInside{Operation::kAllGather, Axis::kShard};
constexpr AxisCollective kGatherAcross{Operation::kAllGather, Axis::kReplicate};
constexpr AxisCollective kScatterInside{Operation::kReduceScatter, Axis::kShard};
constexpr AxisCollective kScatterAcross{Operation::kReduceScatter, Axis::kReplicate};
constexpr AxisCollective kSumAcross{Operation::kAllReduce, Axis::kReplicate};

UnitCollectives on(const MeshShape& shape, Strategy strategy) {
  return moves_of(placements_of(strategy), shape);
}

// Checks only the lists of collectives.
void check(Strategy strategy, const MeshShape& shape, const std::vector<AxisCollective>& on_unshard,
           const std::vector<AxisCollective>& after_update,
           const std::vector<AxisCollective>& after_backward,
           const std::vector<AxisCollective>& across = {}) {
  CAPTURE(name_of(strategy));
  const UnitCollectives collectives = on(shape, strategy);
  CHECK(collectives.on_unshard == on_unshard);
  CHECK(collectives.after_update == after_update);
  CHECK(collectives.after_backward == after_backward);
  CHECK(collectives.across == across);
}

}  // namespace

TEST_CASE("each row of the table moves what its columns say") {
  for (const MeshShape& shape : {MeshShape{1, 4}, MeshShape{2, 3}}) {
    check(Strategy::kFullShard, shape, {kGather}, {}, {kScatter});
    check(Strategy::kZero2, shape, {}, {kGather}, {kScatter});
    check(Strategy::kZero1, shape, {}, {kGather}, {kSum});
    check(Strategy::kReplicate, shape, {}, {}, {kSum});
    for (const Strategy cut : {Strategy::kFullShard, Strategy::kZero2, Strategy::kZero1}) {
      CHECK(on(shape, cut).main_ranks() == shape.size(Axis::kWorld));
    }
    CHECK(on(shape, Strategy::kReplicate).main_ranks() == 1);
  }
}

TEST_CASE(
    "rows that cut within groups reduce inside, then across, and gather the other way round") {
  const MeshShape shape{.replicate = 2, .shard = 3};
  check(Strategy::kHybridShard, shape, {kGatherInside}, {}, {kScatterInside}, {kSumAcross});
  check(Strategy::kHfsdp, shape, {kGatherInside}, {kGatherAcross}, {kScatterInside},
        {kScatterAcross});
  check(Strategy::kHpz, shape, {kGatherInside}, {kGatherAcross}, {kScatterInside, kScatterAcross});
  CHECK(on(shape, Strategy::kHybridShard).main_ranks() == 3);
  CHECK(on(shape, Strategy::kHfsdp).main_ranks() == 6);
  CHECK(on(shape, Strategy::kHpz).to_whole() ==
        std::vector<AxisCollective>{kGatherAcross, kGatherInside});
}

TEST_CASE("in one group what is cut inside is cut everywhere, in groups of one it is whole") {
  for (const Strategy hybrid : {Strategy::kHybridShard, Strategy::kHfsdp, Strategy::kHpz}) {
    CHECK(on({1, 4}, hybrid) == on({1, 4}, Strategy::kFullShard));
  }
  CHECK(on({4, 1}, Strategy::kHybridShard) == on({4, 1}, Strategy::kReplicate));
  CHECK(on({4, 1}, Strategy::kHfsdp) == on({4, 1}, Strategy::kZero1));
  CHECK(on({4, 1}, Strategy::kHpz) == on({4, 1}, Strategy::kZero2));
}

TEST_CASE("on one rank nothing moves, whatever the row") {
  for (const StrategyRow& row : strategies()) CHECK(on({1, 1}, row.strategy) == UnitCollectives{});
}

TEST_CASE("pieces: ranks have all of a segment together, and gathers lead from one to the next") {
  constexpr int64_t kNumel = 60;
  for (const MeshShape& shape : {MeshShape{1, 5}, MeshShape{2, 3}, MeshShape{3, 2}}) {
    for (const StrategyRow& row : strategies()) {
      const Strategy strategy = row.strategy;
      CAPTURE(name_of(strategy));
      const UnitCollectives collectives = on(shape, strategy);
      std::set<int> slices;
      for (int rank = 0; rank < shape.size(Axis::kWorld); ++rank) {
        CAPTURE(rank);
        slices.insert(collectives.main_rank(rank));
        Piece piece = collectives.piece(collectives.row.optimizer, kNumel, rank);
        CHECK(piece.numel * collectives.main_ranks() == kNumel);
        CHECK(piece.begin == collectives.main_rank(rank) * piece.numel);
        const int first = collectives.first_holder(rank);
        CHECK(first <= rank);
        CHECK(collectives.main_rank(first) == collectives.main_rank(rank));
        CHECK(collectives.first_holder(first) == first);
        const auto gather = [&](const std::vector<AxisCollective>& list) {
          for (const AxisCollective& move : list) {
            piece.begin -= shape.rank(move.axis, rank) * piece.numel;
            piece.numel *= shape.size(move.axis);
          }
        };
        gather(collectives.after_update);
        CHECK(piece == collectives.piece(collectives.row.parameters, kNumel, rank));
        gather(collectives.on_unshard);
        CHECK(piece == Piece{.begin = 0, .numel = kNumel});
        const auto scatter = [&](const std::vector<AxisCollective>& list) {
          for (const AxisCollective& move : list) {
            if (move.operation != Operation::kReduceScatter) continue;
            piece.numel /= shape.size(move.axis);
            piece.begin += shape.rank(move.axis, rank) * piece.numel;
          }
        };
        scatter(collectives.after_backward);
        CHECK(piece == collectives.piece(collectives.row.gradients, kNumel, rank));
        scatter(collectives.across);
        if (collectives.scatters_gradients()) {
          CHECK(piece == collectives.piece(collectives.row.optimizer, kNumel, rank));
        }
      }
      CHECK(static_cast<int>(slices.size()) == collectives.main_ranks());
    }
  }
}

TEST_CASE("a row that cuts parameters or gradients without what optimises them is refused") {
  constexpr Placement kWhole = Placement::kReplicate, kCut = Placement::kShardWorld,
                      kInside = Placement::kShardGroup;
  for (const Placements& row :
       {Placements{kCut, kWhole, kCut}, Placements{kCut, kCut, kWhole},
        Placements{kWhole, kCut, kWhole}, Placements{kCut, kCut, kInside}}) {
    CHECK_THROWS_WITH_AS(moves_of(row, {1, 2}), doctest::Contains("shard optimizer state first"),
                         InvalidArgument);
  }
  CHECK_THROWS_AS(placements_of(static_cast<Strategy>(99)), InvalidArgument);
}

TEST_CASE("main shards on the host come for each use where the row cuts parameters, else once") {
  const auto upload = [](Strategy strategy, const MeshShape& shape) {
    return moves_of(placements_of(strategy), shape, /*offloads=*/true).upload;
  };
  for (const MeshShape& shape : {MeshShape{1, 1}, MeshShape{1, 4}, MeshShape{2, 2}}) {
    CHECK(upload(Strategy::kFullShard, shape) == Upload::kForUse);
    CHECK(upload(Strategy::kHybridShard, shape) == Upload::kForUse);
    for (const Strategy whole : {Strategy::kZero2, Strategy::kZero1, Strategy::kReplicate}) {
      CHECK(upload(whole, shape) == Upload::kAfterUpdate);
    }
    for (const Strategy in_pieces : {Strategy::kHfsdp, Strategy::kHpz}) {
      CHECK(upload(in_pieces, shape) ==
            (shape.has_two_axes() ? Upload::kAfterUpdate : Upload::kForUse));
    }
    CHECK(moves_of(placements_of(Strategy::kReplicate), shape).upload == Upload::kNever);
    CHECK(moves_of(placements_of(Strategy::kReplicate), shape, /*offloads=*/true).gathers());
  }
  // If a group has one rank, this rank holds everything that is sharded within groups.
  CHECK(upload(Strategy::kHybridShard, {4, 1}) == Upload::kForUse);
  CHECK(upload(Strategy::kHfsdp, {4, 1}) == Upload::kAfterUpdate);
}

TEST_CASE("moves are told in one line") {
  CHECK(on({1, 4}, Strategy::kZero2).to_string() ==
        "main shards over 4 ranks; before use: nothing; after a change: all_gather; after "
        "backward: reduce_scatter");
  CHECK(on({2, 2}, Strategy::kHfsdp).to_string() ==
        "main shards over 4 ranks; before use: all_gather inside; after a change: all_gather "
        "across; after backward: reduce_scatter inside; after the last backward: reduce_scatter "
        "across");
  CHECK(moves_of(placements_of(Strategy::kFullShard), {1, 1}, /*offloads=*/true).to_string() ==
        "main shards over 1 ranks; before use: nothing; after a change: nothing; after backward: "
        "nothing; from the host before each use");
}
