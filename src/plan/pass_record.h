// A pass as it happened: every boundary of forward and backward at which a unit's bytes may move,
// in order. Recorded by each pass, compared with the one before, and played again to plan memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

enum class Boundary : uint8_t {
  kPreForward,     // a call of a unit begins
  kPostForward,    // it has returned, or thrown
  kBeginBackward,  // before the first kPreBackward; unit ignored
  kPreBackward,    // the first gradient of a call's outputs is there
  kIdle,           // the unit is idle in backward: it has calls that are still to run
  kClose,          // it is finished: closing.md says when
  kEndBackward,    // unit ignored
};

struct PassEvent {
  Boundary boundary = Boundary::kPreForward;
  // kPostForward: backward can reach the call's outputs. kPreBackward and kClose: gradients are
  // captured (not so under autograd::grad: BackwardScheduler::captures).
  bool flag = false;
  int unit = 0;
  int call = -1;  // of kPreForward and kPostForward outside backward: counts the pass's calls
  bool operator==(const PassEvent&) const = default;
};

class PassRecord {
 public:
  PassRecord() = default;
  // The guess before the first pass: units are called in the order of registration, nested as in
  // the module tree. parents[i] is the enclosing unit of unit i; the root is 0, its own parent.
  // recomputed[i]: backward runs its forward again; empty: none does.
  explicit PassRecord(std::span<const int> parents, const std::vector<bool>& recomputed = {});

  void add(const PassEvent& event) { events_.push_back(event); }
  int next_call() { return calls_++; }
  int calls() const { return calls_; }
  const std::vector<PassEvent>& events() const { return events_; }

  // Forgets what was added since the record was of this size, a forward that left no graph.
  struct Mark {
    size_t events = 0;
    int calls = 0;
  };
  Mark mark() const { return {events_.size(), calls_}; }
  void rewind(Mark mark);
  // Drops all calls but these, in ascending order; the i-th of them becomes call i.
  void keep_only(std::span<const int> calls);
  void clear() { *this = {}; }
  // Made by the constructor from a module tree.
  bool is_guess() const { return is_guess_; }

  // Units in the order in which forward, and backward (recomputation included), need them; a unit
  // that is needed again next to itself is there once in backward.
  std::vector<int> forward_order() const;
  std::vector<int> backward_order() const;
  // What backward_order will be, as far as the forwards alone tell.
  std::vector<int> expected_backward_order() const;

  // A guess that comes true is equal to what happened.
  bool operator==(const PassRecord& other) const { return events_ == other.events_; }

 private:
  std::vector<PassEvent> events_;
  int calls_ = 0;
  bool is_guess_ = false;
};

}  // namespace fsdp
