#include "plan/placement.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"

using namespace fsdp;

namespace {

constexpr Move kGather{Operation::kAllGather, Axis::kShard};
constexpr Move kScatter{Operation::kReduceScatter, Axis::kShard};
constexpr Move kSum{Operation::kAllReduce, Axis::kShard};

Moves on_four(Strategy strategy) { return moves_of(placements_of(strategy), 4); }

}  // namespace

TEST_CASE("each row of the table moves what its columns say") {
  CHECK(on_four(Strategy::kFullShard) ==
        Moves{.main_ranks = 4, .before_use = {kGather}, .after_backward = {kScatter}});
  CHECK(on_four(Strategy::kZero2) ==
        Moves{.main_ranks = 4, .after_change = {kGather}, .after_backward = {kScatter}});
  CHECK(on_four(Strategy::kZero1) ==
        Moves{.main_ranks = 4, .after_change = {kGather}, .after_backward = {kSum}});
  CHECK(on_four(Strategy::kReplicate) == Moves{.main_ranks = 1, .after_backward = {kSum}});
}

TEST_CASE("on one rank nothing moves, whatever the row") {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kZero2, Strategy::kZero1, Strategy::kReplicate}) {
    CHECK(moves_of(placements_of(strategy), 1) == Moves{});
  }
}

TEST_CASE("a row that cuts parameters or gradients without what optimises them is refused") {
  constexpr Placement kWhole = Placement::kReplicate, kCut = Placement::kShard;
  for (const Placements& row : {Placements{kCut, kWhole, kCut}, Placements{kCut, kCut, kWhole},
                                Placements{kWhole, kCut, kWhole}}) {
    CHECK_THROWS_WITH_AS(moves_of(row, 2), doctest::Contains("shard optimizer state first"),
                         InvalidArgument);
  }
  CHECK_THROWS_AS(placements_of(static_cast<Strategy>(99)), InvalidArgument);
}

TEST_CASE("moves are told in one line") {
  CHECK(on_four(Strategy::kZero2).to_string() ==
        "main shards over 4 ranks; before use: nothing; after a change: all_gather; after "
        "backward: reduce_scatter");
}
