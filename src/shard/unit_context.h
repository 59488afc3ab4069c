// What the parts of a unit share: its name, how it is cut, what its strategy moves.
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
  ShardLayout layout;                    // cut over moves.main_ranks()
  DType reduce_dtype = DType::kFloat32;  // in which gradients travel
  touch_trap::Touched* owner = nullptr;  // the engine's side, which outlives the unit's bytes

  touch_trap::Watch watch(touch_trap::Holds holds) const {
    return {.owner = owner, .holds = holds, .is_cut = collectives.cuts_main()};
  }
  // Gradients travel in a type that holds less than main gradients, which are fp32.
  bool narrows() const { return reduce_dtype != DType::kFloat32; }
  int segments() const { return static_cast<int>(layout.segments().size()); }
  const SegmentLayout& segment(int index) const { return layout.segments()[index]; }
  // Whose slice of the main shards this rank has.
  int main_rank() const { return collectives.main_rank(shared.mesh.rank()); }
  // What this rank has of a segment under a placement.
  Piece piece(Placement placement, int segment_index) const {
    return collectives.piece(placement, segment(segment_index).numel, shared.mesh.rank());
  }
  CollectiveTag next_tag(Operation operation, int64_t numel) const {
    return shared.comms.next_tag(operation, numel, fqn);
  }
};

}  // namespace fsdp
