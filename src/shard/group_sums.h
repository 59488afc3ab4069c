// GroupSums sums a unit's gradients over the groups of ranks, for strategies that reduce within
// groups first. Until the last backward before a step, the main gradients hold the sums of the
// rank's own group.
#pragma once

#include <span>
#include <vector>

#include "shard/gradient_slot.h"
#include "shard/main_gradients.h"

namespace fsdp {

// A segment's gradients during a reduction. After each collective of the reduction, these are the
// elements of the sum that this rank has received.
struct Summed {
  int segment = 0;
  std::byte* at = nullptr;  // null: the zero-copy gradient is not reduced yet (UnitGradients)
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Issues a collective on the reduce stream and counts its bytes. Collective over the axis.
void issue_reduction(const UnitContext& unit, const AxisCollective& move,
                     std::span<const CollectivePart> parts);
// Adds the sums to the main gradients. If `overwrite` is true, replaces the main gradients by the
// sums.
void add_to_main(const UnitContext& unit, const MainGradients& main,
                 const std::vector<Summed>& sums, bool overwrite);

// Returns true if reductions can run in place in the main gradients, which requires that gradients
// are sent in fp32 and that main gradients are on the device.
bool travel_as_main(const UnitContext& unit);

class GroupSums {
 public:
  // `slots` provides memory for reductions that cannot run in the main gradients. All arguments
  // must outlive this object.
  GroupSums(const UnitContext& unit, MainGradients& main, GradientSlot& slots)
      : unit_(unit), main_(main), slots_(slots) {}

  // Returns true if the strategy sums over groups.
  bool has_moves() const { return !unit_.collectives.across.empty(); }
  // Returns true if the main gradients are sums of this rank's group only.
  bool are_awaited() const { return main_.await_across(); }
  void set_awaited(bool await) { main_.set_await_across(await); }

  // Sums over the groups in place, on the reduce stream. Each entry of `sums` becomes this rank's
  // part of the result.
  void sum(std::vector<Summed>& sums) const;
  // Sums the slot's sums over the groups and writes the result to the main gradients. If
  // are_awaited(), the main gradients hold sums of earlier passes. In this case the slot's sums are
  // first added to the main gradients, and then the totals are summed over the groups. `adds` is
  // false if the main gradients already contain the slot's sums. If not are_awaited(), only the
  // slot's sums are summed over the groups. The result is then added to the main gradients or, with
  // `overwrite`, replaces them.
  void sum_to_main(std::vector<Summed> sums, bool adds, bool overwrite) const;
  // Sums the main gradients over the groups. Called if this pass has added nothing to them.
  // Requires: are_awaited().
  void sum_main();

 private:
  std::vector<Summed> in_main() const;

  const UnitContext& unit_;
  MainGradients& main_;
  GradientSlot& slots_;
};

}  // namespace fsdp
