#include "engine/schedule_player.h"

#include <algorithm>

namespace fsdp {
namespace {

// The next `depth` distinct units other than the current one.
std::vector<int> ahead(const std::vector<int>& order, size_t current, int depth) {
  std::vector<int> units;
  for (size_t i = current + 1; i < order.size() && static_cast<int>(units.size()) < depth; ++i) {
    const bool listed = std::find(units.begin(), units.end(), order[i]) != units.end();
    if (order[i] != order[current] && !listed) units.push_back(order[i]);
  }
  return units;
}

}  // namespace

SchedulePlayer::SchedulePlayer(const std::vector<RecordedCall>& calls,
                               std::span<const UnitRules> rules)
    : calls_(calls), rules_(rules), units_(rules.size()) {}

std::vector<MemoryEvent> SchedulePlayer::play() {
  play_forward();
  note(MemoryAction::kEndForward, 0);
  play_backward();
  note(MemoryAction::kEndBackward, 0);
  return events_;
}

void SchedulePlayer::seat(int unit) {
  if (units_[unit].seated) return;
  units_[unit].seated = true;
  note(MemoryAction::kTakeParameters, unit);
}

void SchedulePlayer::unseat(int unit) {
  if (!units_[unit].seated) return;
  units_[unit].seated = false;
  note(MemoryAction::kGiveParameters, unit);
}

void SchedulePlayer::play_forward() {
  for (const RecordedCall& call : calls_) forward_order_.push_back(call.unit);
  // Enters and exits in the order in which they happened.
  struct Step {
    int at;
    size_t call;
    bool is_exit;
  };
  std::vector<Step> steps;
  for (size_t i = 0; i < calls_.size(); ++i) {
    steps.push_back({calls_[i].enter, i, false});
    steps.push_back({calls_[i].exit, i, true});
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.at < b.at; });
  for (const Step& step : steps) {
    if (step.is_exit) {
      exit(calls_[step.call]);
    } else {
      enter(step.call, calls_[step.call]);
    }
  }
}

void SchedulePlayer::enter(size_t position, const RecordedCall& call) {
  seat(call.unit);
  ++units_[call.unit].active;
  for (const int unit : ahead(forward_order_, position, rules_[call.unit].prefetch_units))
    seat(unit);
}

void SchedulePlayer::exit(const RecordedCall& call) {
  --units_[call.unit].active;
  const bool outermost = std::all_of(units_.begin(), units_.end(),
                                     [](const UnitState& unit) { return unit.active == 0; });
  if (!outermost) {
    if (rules_[call.unit].reshard_after_forward && units_[call.unit].active == 0) unseat(call.unit);
    return;
  }
  // The outermost unit keeps its own; what was gathered ahead and not used goes back.
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (static_cast<int>(unit) == call.unit || !rules_[unit].reshard_after_forward) continue;
    unseat(static_cast<int>(unit));
  }
}

void SchedulePlayer::play_backward() {
  struct Step {
    int at;
    size_t call;
    bool is_exit;
  };
  std::vector<Step> steps;
  std::vector<size_t> fires;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!calls_[i].fires) continue;
    steps.push_back({calls_[i].enter, i, false});
    steps.push_back({calls_[i].exit, i, true});
    ++units_[calls_[i].unit].left_calls;
    fires.push_back(i);
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.at > b.at; });
  std::sort(fires.begin(), fires.end(),
            [&](size_t a, size_t b) { return calls_[a].exit > calls_[b].exit; });
  for (const size_t call : fires) backward_order_.push_back(calls_[call].unit);
  size_t fired = 0;
  for (const Step& step : steps) {
    const RecordedCall& call = calls_[step.call];
    if (step.is_exit) {
      fire(call, fired++);
    } else {
      ++units_[call.unit].over_calls;
    }
  }
  while (!open_.empty()) close(open_.back());
  for (size_t unit = 0; unit < units_.size(); ++unit) unseat(static_cast<int>(unit));
}

void SchedulePlayer::fire(const RecordedCall& call, size_t order) {
  const int unit = call.unit;
  close_finished(unit);
  UnitState& state = units_[unit];
  ++state.fired_calls;
  --state.left_calls;
  if (rules_[unit].unshard_in_backward) seat(unit);
  if (!state.open) {
    state.open = true;
    open_.push_back(unit);
    if (rules_[unit].captures_in_place) take_main_gradient(unit);
    if (rules_[unit].has_trainable) note(MemoryAction::kTakeReduce, unit);
  }
  for (const int next : ahead(backward_order_, order, rules_[unit].prefetch_units)) {
    if (rules_[next].unshard_in_backward) seat(next);
  }
}

void SchedulePlayer::close_finished(int next_unit) {
  for (const int unit : std::vector<int>(open_.rbegin(), open_.rend())) {
    const UnitState& state = units_[unit];
    if (state.over_calls < state.fired_calls) continue;
    if (state.left_calls == 0) {
      close(unit);
    } else if (unit != next_unit) {
      unseat(unit);
    }
  }
}

void SchedulePlayer::close(int unit) {
  std::erase(open_, unit);
  units_[unit].open = false;
  unseat(unit);
  if (!rules_[unit].has_trainable) return;
  take_main_gradient(unit);
  note(MemoryAction::kGiveReduce, unit);
}

void SchedulePlayer::take_main_gradient(int unit) {
  if (units_[unit].has_gradient || !rules_[unit].has_trainable) return;
  units_[unit].has_gradient = true;
  note(MemoryAction::kTakeMainGradient, unit);
}

}  // namespace fsdp
