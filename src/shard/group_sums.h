// GroupSums sums a unit's gradients over the groups of ranks, for strategies that reduce within
// groups first. The sums of a group stay in the main gradients until the last backward before a
// step.
#pragma once

#include <span>
#include <vector>

#include "shard/gradient_slot.h"
#include "shard/main_gradients.h"

namespace fsdp {

// A segment's gradients during a reduction: this rank's part of the sum.
struct Summed {
  int segment = 0;
  std::byte* at = nullptr;  // null: not reduced yet, with a zero-copy gradient (UnitGradients)
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Issues a collective on the reduce stream and counts it. Collective over the axis.
void issue_collective(const UnitContext& unit, const AxisCollective& move,
                      std::span<const CollectivePart> parts);
// Adds the sums to the main gradients, or overwrites these.
void add_to_main(const UnitContext& unit, const MainGradients& main,
                 const std::vector<Summed>& sums, bool overwrite);

// Returns true if reductions can work in the main gradients themselves: in fp32, on the device.
bool travel_as_main(const UnitContext& unit);

class GroupSums {
 public:
  // `slots`: memory for reductions that cannot work in the main gradients. Requires: all arguments
  // live as long.
  GroupSums(const UnitContext& unit, MainGradients& main, GradientSlot& slots)
      : unit_(unit), main_(main), slots_(slots) {}

  // Returns true if the strategy sums over groups.
  bool has_moves() const { return !unit_.collectives.across.empty(); }
  // Returns true if the main gradients are sums of this rank's group only.
  bool are_awaited() const { return main_.await_across(); }
  void set_awaited(bool await) { main_.set_await_across(await); }

  // Sums over the groups in place, on the reduce stream. Each entry becomes this rank's part of the
  // result.
  void sum(std::vector<Summed>& sums) const;
  // Sums a slot's sums over the groups and writes the result to the main gradients. If these
  // are awaited, the slot's sums first join them; `adds`: false if they hold them already.
  // `overwrite`: if they are not awaited, they hold nothing.
  void sum_to_main(std::vector<Summed> sums, bool adds, bool overwrite) const;
  // Sums the main gradients over the groups if this pass has added nothing to them. Requires:
  // are_awaited().
  void sum_main();

 private:
  std::vector<Summed> in_main() const;

  const UnitContext& unit_;
  MainGradients& main_;
  GradientSlot& slots_;
};

}  // namespace fsdp
