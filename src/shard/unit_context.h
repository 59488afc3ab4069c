// UnitContext holds the values that the parts of a unit share: name, layout, collectives.
#pragma once

#include <string>

#include "libtorch/touch_trap.h"
#include "plan/placement.h"
#include "plan/shard_layout.h"
#include "shard/shard_context.h"

namespace fsdp {

struct UnitContext {
  std::string fqn;
  ShardContext& shared;
  UnitCollectives collectives;
  ShardLayout layout;                    // cut into collectives.main_ranks() slices
  DType reduce_dtype = DType::kFloat32;  // type in which gradients are sent
  touch_trap::Touched* owner = nullptr;  // the engine's object of the unit; outlives its memory

  touch_trap::Watch watch(touch_trap::Holds holds) const {
    return {.owner = owner, .holds = holds, .is_cut = collectives.cuts_main()};
  }
  // Returns true if gradients are sent in a narrower type than fp32, the type of main gradients.
  bool narrows() const { return reduce_dtype != DType::kFloat32; }
  int segments() const { return static_cast<int>(layout.segments().size()); }
  const SegmentLayout& segment(int index) const { return layout.segments()[index]; }
  // Returns the index of this rank's slice of the main shards.
  int main_rank() const { return collectives.main_rank(shared.mesh.rank()); }
  // Returns this rank's piece of a segment under a placement.
  Piece piece(Placement placement, int segment_index) const {
    return collectives.piece(placement, segment(segment_index).numel, shared.mesh.rank());
  }
  CollectiveTag next_tag(Operation operation, int64_t numel) const {
    return shared.comms.next_tag(operation, numel, fqn);
  }
};

}  // namespace fsdp
