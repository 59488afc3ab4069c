// The placement table defines how parameters, gradients and optimizer state are distributed over
// ranks. Each strategy is a row of the table. Only moves_of reads rows. Units execute the
// collectives that moves_of lists and never check the name of a strategy.
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

// The set of ranks over which a segment is sharded. The values are ordered from the fewest ranks to
// the most.
enum class Placement : uint8_t {
  kReplicate,   // no sharding: every rank holds the whole segment
  kShardGroup,  // the ranks of a group: every group holds the whole segment
  kShardWorld,  // all ranks
};

struct Placements {
  Placement parameters = Placement::kShardWorld;
  Placement gradients = Placement::kShardWorld;
  Placement optimizer = Placement::kShardWorld;  // of optimizer state and main shards
  bool operator==(const Placements&) const = default;
};

// A strategy: its placements and its names. Flags, the planner, tests and benchmarks take the names
// from here.
struct StrategyRow {
  Strategy strategy = Strategy::kFullShard;
  std::string_view name;  // name in flags and errors: "full-shard", "zero2", …
  Placements placements;
  std::string_view meaning;     // another common name of the strategy, for help; may be empty
  std::string_view other_name;  // second name that --strategy accepts; may be empty

  // Returns true if the row shards anything over the ranks of a group.
  bool is_by_groups() const;
};
// Returns all rows, in the order in which help lists them.
std::span<const StrategyRow> strategies();

// Return fields of the strategy's row. Errors: InvalidArgument for a value that is not a strategy.
Placements placements_of(Strategy strategy);
std::string_view name_of(Strategy strategy);

// A collective over the ranks of one axis.
struct AxisCollective {
  Operation operation = Operation::kAllGather;
  Axis axis = Axis::kShard;
  bool operator==(const AxisCollective&) const = default;
};

// The contiguous run of a segment's elements that a rank holds under a placement.
struct Piece {
  int64_t begin = 0;
  int64_t numel = 0;
  bool operator==(const Piece&) const = default;
};

// Selects when a rank's main shard is copied to the device, if main shards are on the host.
enum class Upload : uint8_t {
  kNever,        // main shards are on the device
  kForUse,       // at each unshard
  kAfterUpdate,  // after each change, into a resident copy
};

// The collectives of a unit. The collectives in one list run one after the other. Each collective
// works on the result of the previous one. If a list is empty, nothing is communicated.
//
// [Note: pieces of pieces] A segment that is sharded over all ranks is usually cut into one piece
// per rank, in the order of ranks. If the row also shards something within groups, the segment is
// first cut into one large piece per rank of a group. Each large piece is then cut into one piece
// per group. So a rank's large piece is contiguous: it consists of the pieces of the ranks that
// have the same position in all groups.
struct UnitCollectives {
  Placements row{Placement::kReplicate, Placement::kReplicate, Placement::kReplicate};
  MeshShape shape{};
  std::vector<AxisCollective> on_unshard;  // at each unshard, into a slot
  // These collectives run after main shards have changed and write into a resident copy. They are
  // issued before the next use of the parameters, so that they overlap with compute as other
  // gathers do.
  std::vector<AxisCollective> after_update;
  std::vector<AxisCollective> after_backward;  // reduce gradients into main gradients
  std::vector<AxisCollective> across;  // sum main gradients, after the last backward before a step
  Upload upload = Upload::kNever;      // before on_unshard or after_update

  // Returns the number of pieces into which the placement cuts a segment.
  int pieces(Placement placement) const;
  Piece piece(Placement placement, int64_t segment_numel, int rank) const;
  // Returns the number of slices of the main shards.
  int main_ranks() const { return pieces(row.optimizer); }
  // Returns the index of the rank's slice, which is below main_ranks().
  int main_rank(int rank) const;

  bool cuts_main() const { return main_ranks() > 1; }
  // Returns true if parameters need a gather or an upload before use. Such a unit can be
  // prefetched.
  bool gathers() const {
    return !on_unshard.empty() || !after_update.empty() || upload != Upload::kNever;
  }
  // Returns true if main gradients are sharded. Otherwise every rank holds whole main gradients.
  bool scatters_gradients() const { return pieces(row.gradients) > 1; }
  // Returns the lowest rank that holds the same slice of the main shards as `rank`. The slice has
  // equal values on all ranks that hold it.
  int first_holder(int rank) const;
  // Returns the gathers that assemble whole parameters from main shards.
  std::vector<AxisCollective> to_whole() const;
  // Returns a text like "main shards over 4 ranks; before use: all_gather; …".
  std::string to_string() const;
  bool operator==(const UnitCollectives&) const = default;
};

// Returns the collectives of a unit with this placement row on a mesh of this shape. On a mesh with
// one group, kShardGroup equals kShardWorld. With groups of one rank, kShardGroup equals
// kReplicate. On one rank all rows are equal and nothing is communicated. `offloads` is true if
// main state is on the host. In that case parameters that the row shards are uploaded for each use,
// even if there is only one rank.
// Errors: InvalidArgument for a row that shards optimizer state over fewer ranks than gradients, or
// gradients over fewer ranks than parameters.
UnitCollectives moves_of(const Placements& row, const MeshShape& shape, bool offloads = false);

}  // namespace fsdp
