// How parameters, gradients and optimizer state lie on the ranks. A strategy is a row of this
// table, and moves_of the only reader of rows: units do what it lists and ask nobody for a
// strategy's name.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace fsdp {

enum class Placement : uint8_t { kReplicate, kShard };

struct Placements {
  Placement parameters = Placement::kShard;
  Placement gradients = Placement::kShard;
  Placement optimizer = Placement::kShard;  // and with it the main shards
  bool operator==(const Placements&) const = default;
};

// Errors: InvalidArgument for a value that is no strategy.
Placements placements_of(Strategy strategy);
// The field's word: "full-shard", "zero2", …
std::string_view name_of(Strategy strategy);

// A collective over the ranks of an axis.
struct Move {
  Operation operation = Operation::kAllGather;
  Axis axis = Axis::kShard;
  bool operator==(const Move&) const = default;
};

// What a unit's bytes go through; an empty list is nothing. Today's rows have one move a list: one
// across a second axis will follow it, on what the first has left.
struct Moves {
  int main_ranks = 1;                // among which main shards are cut; 1: whole on every rank
  std::vector<Move> before_use;      // each time parameters are unsharded, into a slot
  std::vector<Move> after_change;    // once main shards have changed, into a resident copy: before
                                     // the next use, so that it overlaps as other gathers do
  std::vector<Move> after_backward;  // of gradients, to the main gradient

  bool cuts_main() const { return main_ranks > 1; }
  bool gathers() const { return !before_use.empty() || !after_change.empty(); }
  // Main gradients are as long as main shards; else every rank holds them whole.
  bool scatters_gradients() const;
  // "main shards over 4 ranks; before use: all_gather; …"
  std::string to_string() const;
  bool operator==(const Moves&) const = default;
};

// `ranks`: the size of the axis on which the row's sharded columns are cut. On one rank all rows
// are the same: nothing moves.
// Errors: InvalidArgument for a row that cannot be (state whole beside cut gradients or parameters,
// whole gradients of cut parameters).
Moves moves_of(const Placements& row, int ranks);

}  // namespace fsdp
