// UpdateTimes decides when a backward updates each unit, with Options::optimizer_in_backward.
//
// [Note: last reduction] A unit is updated after its last reduction in a backward, because a second
// update would use gradients of weights that the first update has replaced. If the forwards of the
// pass have called the unit exactly once, its first reduction is the last one. Otherwise a
// recomputation may open the unit again after it was closed: each recomputed function runs its own
// backward. Such a unit is updated at the end of the backward, in the order of units. An updated
// unit is not prefetched, and it must not be used again in this backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/pass_record.h"

namespace fsdp {

class UpdateTimes {
 public:
  // If `are_on` is false, no unit is updated.
  UpdateTimes(bool are_on, size_t units) : are_on_(are_on), state_(units, State::kAtEnd) {}

  // Begins a backward. `record` has the forwards of its pass.
  void begin_backward(const PassRecord& record);
  // Notes a reduction of the unit. Returns true if the unit must be updated now.
  bool after_reduction(int unit);
  // Returns true if the unit must be updated at the end of the backward.
  bool at_end(int unit);
  // Returns true if this backward has updated the unit.
  bool is_updated(int unit) const { return state_[unit] == State::kUpdated; }

 private:
  // kAtReduction and kAtEnd: the time of the update. kDue: the unit has gradients and is updated at
  // the end.
  enum class State : uint8_t { kAtReduction, kAtEnd, kDue, kUpdated };

  const bool are_on_;
  std::vector<State> state_;  // by unit
};

}  // namespace fsdp
