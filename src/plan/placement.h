// How parameters, gradients and optimizer state lie on the ranks. A strategy is a row of this
// table, and moves_of the only reader of rows: units do what it lists and ask nobody for a
// strategy's name.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/mesh_parts.h"

namespace fsdp {

// Over which ranks something is cut, from fewest to most.
enum class Placement : uint8_t {
  kReplicate,   // over none: every rank has all of it
  kShardGroup,  // over those of a group: every group has all of it
  kShardWorld,  // over all
};

struct Placements {
  Placement parameters = Placement::kShardWorld;
  Placement gradients = Placement::kShardWorld;
  Placement optimizer = Placement::kShardWorld;  // and with it the main shards
  bool operator==(const Placements&) const = default;
};

// All that is known of a strategy. Flags, the planner, tests and benchmarks read its names here.
struct StrategyRow {
  Strategy strategy = Strategy::kFullShard;
  std::string_view name;  // the field's word: "full-shard", "zero2", …
  Placements placements;
  std::string_view meaning;     // the field's other word for it, for help; may be empty
  std::string_view other_name;  // taken by --strategy as well; may be empty

  // It cuts something over the ranks of a group.
  bool is_by_groups() const;
};
// In the order in which help names them.
std::span<const StrategyRow> strategies();

// Errors: InvalidArgument for a value that is no strategy.
Placements placements_of(Strategy strategy);
std::string_view name_of(Strategy strategy);

// A collective over the ranks of an axis.
struct AxisCollective {
  Operation operation = Operation::kAllGather;
  Axis axis = Axis::kShard;
  bool operator==(const AxisCollective&) const = default;
};

// The elements of a segment that a rank has under a placement.
struct Piece {
  int64_t begin = 0;
  int64_t numel = 0;
  bool operator==(const Piece&) const = default;
};

// When a rank's piece is brought to the device, where main shards are on the host.
enum class Upload : uint8_t {
  kNever,        // main shards are the device's
  kForUse,       // each time parameters are unsharded
  kAfterUpdate,  // to a copy that stays
};

// What a unit's bytes go through, one move after the other, each on what the one before has left;
// an empty list is nothing.
//
// [Note: pieces of pieces]
// What is cut over all ranks is cut by rank, unless the row cuts something inside of groups, too:
// then it is cut within a group first, and what a rank has there over the groups, so that a piece
// within the group is made of the groups' neighbouring pieces.
struct UnitCollectives {
  Placements row{Placement::kReplicate, Placement::kReplicate, Placement::kReplicate};
  MeshShape shape{};
  std::vector<AxisCollective> on_unshard;  // each time parameters are unsharded, into a slot
  std::vector<AxisCollective>
      after_update;  // once main shards have changed, into a copy that stays: before
                     // the next use, so that it overlaps as other gathers do
  std::vector<AxisCollective> after_backward;  // of gradients, to the main gradient
  std::vector<AxisCollective> across;  // of main gradients, after the last backward before a step
  Upload upload = Upload::kNever;      // ahead of on_unshard, or of after_update

  // The placement's pieces of a segment; the main shards are as many slices.
  int pieces(Placement placement) const;
  Piece piece(Placement placement, int64_t segment_numel, int rank) const;
  int main_ranks() const { return pieces(row.optimizer); }
  // Whose slice of main_ranks() the rank has.
  int main_rank(int rank) const;

  bool cuts_main() const { return main_ranks() > 1; }
  // Something is to be done before parameters can be read, which can be done ahead.
  bool gathers() const {
    return !on_unshard.empty() || !after_update.empty() || upload != Upload::kNever;
  }
  // Main gradients are cut; else every rank holds them whole.
  bool scatters_gradients() const { return pieces(row.gradients) > 1; }
  // The lowest rank that holds this rank's slice of the main shards, which all those have alike.
  int first_holder(int rank) const;
  // What makes main shards whole.
  std::vector<AxisCollective> to_whole() const;
  // "main shards over 4 ranks; before use: all_gather; …"
  std::string to_string() const;
  bool operator==(const UnitCollectives&) const = default;
};

// On a mesh of one group what is cut inside is cut everywhere, on groups of one rank it is whole;
// on one rank all rows are the same: nothing moves between ranks. `offloads`: main shards, and what
// goes with them, are on the host; parameters that the row cuts come from there for each use, also
// where there is no other rank.
// Errors: InvalidArgument for a row that cannot be (state cut over fewer ranks than gradients, or
// gradients than parameters).
UnitCollectives moves_of(const Placements& row, const MeshShape& shape, bool offloads = false);

}  // namespace fsdp
