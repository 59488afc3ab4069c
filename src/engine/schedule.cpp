#include "engine/schedule.h"

#include <algorithm>
#include <utility>

#include "engine/schedule_player.h"

namespace fsdp {
namespace {

std::vector<int> by_enter(const std::vector<RecordedCall>& calls) {
  std::vector<int> units;
  for (const RecordedCall& call : calls) units.push_back(call.unit);
  return units;
}

std::vector<int> by_reversed_exit(std::vector<RecordedCall> calls) {
  std::erase_if(calls, [](const RecordedCall& call) { return !call.fires; });
  std::sort(calls.begin(), calls.end(),
            [](const RecordedCall& a, const RecordedCall& b) { return a.exit > b.exit; });
  return by_enter(calls);
}

// Moves to just behind the next `unit` at or after the cursor; stays if there is none.
void follow(const std::vector<int>& hint, size_t& cursor, int unit) {
  const auto found = std::find(hint.begin() + static_cast<int64_t>(std::min(cursor, hint.size())),
                               hint.end(), unit);
  if (found != hint.end()) cursor = found - hint.begin() + 1;
}

std::vector<int> distinct_from(const std::vector<int>& hint, size_t cursor, int depth) {
  std::vector<int> ahead;
  for (size_t i = cursor; i < hint.size() && static_cast<int>(ahead.size()) < depth; ++i) {
    const bool is_current = cursor > 0 && hint[i] == hint[cursor - 1];
    if (!is_current && std::find(ahead.begin(), ahead.end(), hint[i]) == ahead.end()) {
      ahead.push_back(hint[i]);
    }
  }
  return ahead;
}

}  // namespace

Schedule::Schedule(std::span<const int> parents) {
  std::vector<std::vector<int>> children(parents.size());
  for (size_t i = 1; i < parents.size(); ++i) children[parents[i]].push_back(static_cast<int>(i));
  const auto visit = [&](auto&& self, int unit) -> void {
    const int record = enter(unit);
    for (const int child : children[unit]) self(self, child);
    exit(record);
  };
  if (!parents.empty()) visit(visit, 0);
  end_pass();
  backward_seen_ = false;
}

void Schedule::begin_forward() {
  forward_start_ = static_cast<int>(calls_.size());
  forward_cursor_ = 0;
}

int Schedule::enter(int unit) {
  follow(forward_hint_, forward_cursor_, unit);
  calls_.push_back({.unit = unit, .enter = position_++, .exit = position_, .fires = true});
  return static_cast<int>(calls_.size()) - 1;
}

void Schedule::exit(int record) { calls_[record].exit = position_++; }

void Schedule::drop_forward() {
  calls_.resize(forward_start_);
  position_ =
      calls_.empty() ? 0 : 1 + std::max_element(calls_.begin(), calls_.end(), [](auto& a, auto& b) {
                                 return a.exit < b.exit;
                               })->exit;
}

void Schedule::begin_backward() {
  backward_cursor_ = 0;
  needs_.clear();
  if (!backward_seen_) backward_hint_ = by_reversed_exit(calls_);
  for (RecordedCall& call : calls_) call.fires = false;
}

void Schedule::fired(int record) {
  if (record >= 0 && record < static_cast<int>(calls_.size())) calls_[record].fires = true;
}

void Schedule::needed_in_backward(int unit) {
  if (!needs_.empty() && needs_.back() == unit) return;
  needs_.push_back(unit);
  follow(backward_hint_, backward_cursor_, unit);
}

bool Schedule::end_pass() {
  if (calls_.empty()) {  // a second backward of forwards that an earlier pass has taken
    abandon_pass();
    return false;
  }
  const bool differs = calls_ != hint_;
  hint_ = std::exchange(calls_, {});
  kept_ = 0;
  forward_hint_ = by_enter(hint_);
  backward_hint_ = needs_.empty() ? by_reversed_exit(hint_) : std::exchange(needs_, {});
  backward_seen_ = true;
  position_ = 0;
  forward_cursor_ = backward_cursor_ = 0;
  return differs;
}

void Schedule::keep_only(std::span<const int> records) {
  for (size_t i = 0; i < records.size(); ++i) calls_[i] = calls_[records[i]];
  calls_.resize(records.size());
  kept_ = calls_.size();
}

void Schedule::abandon_pass() {
  calls_.clear();
  kept_ = 0;
  needs_.clear();
  position_ = 0;
  forward_cursor_ = backward_cursor_ = 0;
}

std::vector<int> Schedule::ahead_in_forward(int depth) const {
  return distinct_from(forward_hint_, forward_cursor_, depth);
}

std::vector<int> Schedule::ahead_in_backward(int depth) const {
  return distinct_from(backward_hint_, backward_cursor_, depth);
}

std::vector<MemoryEvent> Schedule::memory_events(std::span<const UnitRules> rules) const {
  return SchedulePlayer(hint_, rules).play();
}

}  // namespace fsdp
