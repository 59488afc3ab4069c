#include "plan/pass_record.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

// Writes the record of a pass whose units are called in the order of registration, nested as in the
// module tree.
class Guess {
 public:
  Guess(PassRecord& record, std::span<const int> parents, const std::vector<bool>& recomputed)
      : record_(record), children_(parents.size()), recomputed_(recomputed) {
    for (size_t i = 1; i < parents.size(); ++i)
      children_[parents[i]].push_back(static_cast<int>(i));
  }

  // Adds the forward of a unit. `in_graph` is false inside a recomputed unit, because its first
  // forward makes no graph.
  void forward(int unit, bool in_graph) {
    const int call = record_.next_call();
    record_.add({.boundary = Boundary::kPreForward, .unit = unit, .call = call});
    for (const int child : children_[unit]) forward(child, in_graph && !recomputes(unit));
    // The flag is false for a recomputed unit, because its outputs are made by the node of
    // fsdp::recompute, which is outside the unit's call.
    record_.add({.boundary = Boundary::kPostForward,
                 .flag = in_graph && !recomputes(unit),
                 .unit = unit,
                 .call = call});
  }
  // Adds the backward of a unit. The unit opens before the units inside it. It closes after them
  // and before the next unit opens.
  void backward(int unit) {
    if (recomputes(unit)) again(unit);
    record_.add({.boundary = Boundary::kPreBackward, .flag = true, .unit = unit});
    const std::vector<int>& inside = children_[unit];
    for (auto child = inside.rbegin(); child != inside.rend(); ++child) backward(*child);
    record_.add({.boundary = Boundary::kClose, .flag = true, .unit = unit});
  }

 private:
  bool recomputes(int unit) const { return !recomputed_.empty() && recomputed_[unit]; }
  // Adds the events of a forward in backward, which have no call number.
  void again(int unit) {
    record_.add({.boundary = Boundary::kPreForward, .unit = unit});
    for (const int child : children_[unit]) again(child);
    record_.add({.boundary = Boundary::kPostForward, .unit = unit});
  }

  PassRecord& record_;
  std::vector<std::vector<int>> children_;
  const std::vector<bool>& recomputed_;
};

}  // namespace

PassRecord::PassRecord(std::span<const int> parents, const std::vector<bool>& recomputed) {
  is_guess_ = true;
  if (parents.empty()) return;
  Guess guess(*this, parents, recomputed);
  guess.forward(0, /*in_graph=*/true);
  add({.boundary = Boundary::kBeginBackward});
  guess.backward(0);
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

// Backward first reaches the call that ended last in forward, so the order is the reverse order of
// ends.
std::vector<int> PassRecord::expected_backward_order() const {
  std::vector<int> units;
  for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
    if (event->boundary == Boundary::kPostForward && event->call >= 0) units.push_back(event->unit);
  }
  return units;
}

}  // namespace fsdp
