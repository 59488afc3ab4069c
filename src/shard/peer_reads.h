// Reading peers' main shards where they lie, instead of gathering them.
//
// [Note: reading mapped shards]
// A unit whose ranks' shards are mapped side by side is unsharded without a collective: forward
// and backward read peers' shards where they lie. So nobody may write a shard while somebody
// reads: all ranks meet before the first read of a forward or backward, when what they wrote is
// written, and after its last, before the caller can write again. Both are collective.
#pragma once

#include <optional>
#include <string_view>

#include "comm/ranks_view.h"
#include "shard/comm_streams.h"
#include "shard/communicators.h"

namespace fsdp {

class PeerReads {
 public:
  // Those given live as long.
  PeerReads(const Mesh& mesh, const Options& options, const Communicators& comms,
            CommStreams& streams)
      : mesh_(mesh), comms_(comms), streams_(streams), maps_(options.tuning.map_shards) {}

  // Empty where the ranks' shards are gathered instead.
  RanksView map_ranks(void* mine, int64_t bytes, Axis axis);
  void begin() { meet("shards are read from here"); }
  void end() { meet("shards are read until here"); }

 private:
  void meet(std::string_view purpose);

  const Mesh& mesh_;
  const Communicators& comms_;
  CommStreams& streams_;
  const bool maps_;
  std::optional<Axis> reads_;  // some unit is mapped: over whom
};

}  // namespace fsdp
