// A unit's sums over the groups of ranks, for strategies that reduce within a group first: what a
// group has summed waits in the main gradients until the last backward before a step.
#pragma once

#include <span>
#include <vector>

#include "shard/gradient_slot.h"
#include "shard/main_gradients.h"

namespace fsdp {

// A segment's gradients on their way: what this rank has of the sum.
struct Summed {
  int segment = 0;
  std::byte* at = nullptr;  // null: whole, and some of it lent (UnitGradients)
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Issues the move on the reduce stream, where all ranks do, and counts it.
void issue_collective(const UnitContext& unit, const AxisCollective& move,
                      std::span<const CollectivePart> parts);
// Adds the sums to the main gradients, or overwrites those.
void add_to_main(const UnitContext& unit, const MainGradients& main,
                 const std::vector<Summed>& sums, bool overwrite);

// Sums can be made where main gradients lie: in fp32, on the device.
bool travel_as_main(const UnitContext& unit);

class GroupSums {
 public:
  // All live as long. `slots`: where sums travel that cannot where main gradients lie.
  GroupSums(const UnitContext& unit, MainGradients& main, GradientSlot& slots)
      : unit_(unit), main_(main), slots_(slots) {}

  // The strategy sums over groups.
  bool has_moves() const { return !unit_.collectives.across.empty(); }
  // Main gradients are sums of this rank's group alone.
  bool are_awaited() const { return main_.await_across(); }
  void set_awaited(bool await) { main_.set_await_across(await); }

  // Sums over the groups where the sums lie, on the reduce stream; a rank keeps what is its own.
  void sum(std::vector<Summed>& sums) const;
  // The same of sums of a group in a slot, which end in the main gradients. `adds`: they are not in
  // them yet, and join what earlier passes have left there; `overwrite`: nothing is there.
  void sum_to_main(std::vector<Summed> sums, bool adds, bool overwrite) const;
  // The same of the main gradients, to which this pass has added nothing. Requires: are_awaited().
  void sum_main();

 private:
  std::vector<Summed> in_main() const;

  const UnitContext& unit_;
  MainGradients& main_;
  GradientSlot& slots_;
};

}  // namespace fsdp
