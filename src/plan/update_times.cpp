#include "plan/update_times.h"

namespace fsdp {

void UpdateTimes::begin_backward(const PassRecord& record) {
  if (!are_on_) return;
  std::vector<int> calls(state_.size(), 0);
  for (const PassEvent& event : record.events()) {
    if (event.boundary == Boundary::kPreForward && event.call >= 0) ++calls[event.unit];
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    state_[i] = calls[i] == 1 ? State::kAtReduction : State::kAtEnd;
  }
}

bool UpdateTimes::after_reduction(int unit) {
  if (!are_on_) return false;
  const bool is_last = state_[unit] == State::kAtReduction;
  state_[unit] = is_last ? State::kUpdated : State::kDue;
  return is_last;
}

bool UpdateTimes::at_end(int unit) {
  if (state_[unit] != State::kDue) return false;
  state_[unit] = State::kUpdated;
  return true;
}

}  // namespace fsdp
