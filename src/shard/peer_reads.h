// PeerReads maps peers' main shards and orders reads of them, so that they need not be gathered.
//
// [Note: reading mapped shards] If the shards of a unit's ranks are mapped side by side, the unit
// is unsharded without a collective: forward and backward read peers' shards in place. So no rank
// may write a shard while a peer reads it. All ranks pass a barrier before the first read of a
// forward or backward, behind their own writes, and another one after the last read, before the
// caller can write again. Both are collective.
#pragma once

#include <optional>
#include <string_view>

#include "comm/ranks_view.h"
#include "shard/comm_streams.h"
#include "shard/communicators.h"

namespace fsdp {

class PeerReads {
 public:
  // Requires: the arguments live as long.
  PeerReads(const Mesh& mesh, const Options& options, const Communicators& comms,
            CommStreams& streams)
      : mesh_(mesh), comms_(comms), streams_(streams), maps_(options.tuning.map_shards) {}

  // Returns a view of all ranks' shards, empty on all ranks if they must be gathered instead.
  // Collective over the axis.
  RanksView map_ranks(void* mine, int64_t bytes, Axis axis);
  // Pass the barriers before and after a pass's reads, if any unit is mapped (wait 11).
  void begin() { meet("shards are read from here"); }
  void end() { meet("shards are read until here"); }

 private:
  void meet(std::string_view purpose);

  const Mesh& mesh_;
  const Communicators& comms_;
  CommStreams& streams_;
  const bool maps_;
  std::optional<Axis> reads_;  // axis of the mapped units; none: no unit is mapped
};

}  // namespace fsdp
