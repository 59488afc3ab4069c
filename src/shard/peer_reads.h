// PeerReads maps peers' main shards and orders reads of them. With mapped shards no gather is
// needed.
//
// [Note: reading mapped shards] If the shards of a unit's ranks are mapped side by side, the unit
// is unsharded without a collective: forward and backward read peers' shards in place. So no rank
// may write a shard while a peer reads it. Two barriers over all ranks ensure this. The first
// follows a rank's own writes and precedes the first read of a forward or backward. The second
// follows the last read and precedes the next write by the caller. Both barriers are collective.
#pragma once

#include <optional>
#include <string_view>

#include "comm/ranks_view.h"
#include "shard/comm_streams.h"
#include "shard/communicators.h"

namespace fsdp {

class PeerReads {
 public:
  // All arguments must outlive this object.
  PeerReads(const Mesh& mesh, const Options& options, const Communicators& comms,
            CommStreams& streams)
      : mesh_(mesh), comms_(comms), streams_(streams), maps_(options.tuning.map_shards) {}

  // Returns a view of all ranks' shards. The view is empty on all ranks if the shards cannot be
  // mapped and must be gathered. Collective over the axis.
  RanksView map_ranks(void* mine, int64_t bytes, Axis axis);
  // Execute the barrier before the first read of a forward or backward, and the barrier after its
  // last read (wait 11). They do nothing if no unit is mapped.
  void begin() { meet("shards are read from here"); }
  void end() { meet("shards are read until here"); }

 private:
  void meet(std::string_view purpose);

  const Mesh& mesh_;
  const Communicators& comms_;
  CommStreams& streams_;
  const bool maps_;
  std::optional<Axis> reads_;  // axis of the mapped units; empty if no unit is mapped
};

}  // namespace fsdp
