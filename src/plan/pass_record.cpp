#include "plan/pass_record.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

void add_guess(PassRecord& record, const std::vector<std::vector<int>>& children, int unit) {
  const int call = record.next_call();
  record.add({.boundary = Boundary::kPreForward, .unit = unit, .call = call});
  for (const int child : children[unit]) add_guess(record, children, child);
  record.add({.boundary = Boundary::kPostForward, .flag = true, .unit = unit, .call = call});
}

// A unit closes before the next one opens, around those that it encloses.
void add_backward_guess(PassRecord& record, const std::vector<std::vector<int>>& children,
                        int unit) {
  record.add({.boundary = Boundary::kPreBackward, .flag = true, .unit = unit});
  for (auto child = children[unit].rbegin(); child != children[unit].rend(); ++child) {
    add_backward_guess(record, children, *child);
  }
  record.add({.boundary = Boundary::kClose, .flag = true, .unit = unit});
}

}  // namespace

PassRecord::PassRecord(std::span<const int> parents) {
  is_guess_ = true;
  if (parents.empty()) return;
  std::vector<std::vector<int>> children(parents.size());
  for (size_t i = 1; i < parents.size(); ++i) children[parents[i]].push_back(static_cast<int>(i));
  add_guess(*this, children, 0);
  add({.boundary = Boundary::kBeginBackward});
  add_backward_guess(*this, children, 0);
  add({.boundary = Boundary::kEndBackward});
}

void PassRecord::rewind(Mark mark) {
  events_.resize(mark.events);
  calls_ = mark.calls;
}

void PassRecord::keep_only(std::span<const int> calls) {
  std::vector<PassEvent> kept;
  for (PassEvent event : events_) {
    const auto found = std::lower_bound(calls.begin(), calls.end(), event.call);
    if (found == calls.end() || *found != event.call) continue;
    event.call = static_cast<int>(found - calls.begin());
    kept.push_back(event);
  }
  events_ = std::move(kept);
  calls_ = static_cast<int>(calls.size());
}

std::vector<int> PassRecord::forward_order() const {
  std::vector<int> units;
  for (const PassEvent& event : events_) {
    if (event.boundary == Boundary::kPreForward && event.call >= 0) units.push_back(event.unit);
  }
  return units;
}

std::vector<int> PassRecord::backward_order() const {
  std::vector<int> units;
  for (const PassEvent& event : events_) {
    const bool recomputes = event.boundary == Boundary::kPreForward && event.call < 0;
    if (!recomputes && event.boundary != Boundary::kPreBackward) continue;
    if (units.empty() || units.back() != event.unit) units.push_back(event.unit);
  }
  return units;
}

std::vector<int> PassRecord::expected_backward_order() const {
  std::vector<int> units;
  for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
    if (event->boundary == Boundary::kPostForward && event->call >= 0) units.push_back(event->unit);
  }
  return units;
}

}  // namespace fsdp
