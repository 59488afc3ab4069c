// PassRecord lists the boundaries of a pass in order: the points of forward and backward at which a
// unit's memory may change. A pass writes one and compares it with the pass before; the memory plan
// plays it again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

enum class Boundary : uint8_t {
  kPreForward,     // a call of a unit begins
  kPostForward,    // it has returned or thrown
  kBeginBackward,  // before the first kPreBackward; unit ignored
  kPreBackward,    // backward reaches an output of a call
  kIdle,           // the unit is idle in backward: other calls of it will still run
  kClose,          // the unit is finished (docs/closing.md)
  kEndBackward,    // unit ignored
};

struct PassEvent {
  Boundary boundary = Boundary::kPreForward;
  // kPostForward: backward can reach the call's outputs. kPreBackward and kClose: gradients are
  // captured (BackwardScheduler::captures).
  bool flag = false;
  int unit = 0;
  int call = -1;  // number of the call in the pass; -1 in backward
  bool operator==(const PassEvent&) const = default;
};

class PassRecord {
 public:
  PassRecord() = default;
  // Makes the guess before the first pass: units are called in the order of registration, nested as
  // in the module tree. parents[i] is the unit around unit i; the root is 0 and its own parent.
  // recomputed[i]: backward runs its forward again. Empty: no unit is recomputed.
  explicit PassRecord(std::span<const int> parents, const std::vector<bool>& recomputed = {});

  void add(const PassEvent& event) { events_.push_back(event); }
  int next_call() { return calls_++; }
  int calls() const { return calls_; }
  const std::vector<PassEvent>& events() const { return events_; }

  // A size of the record. `rewind` drops what was added since: a forward that left no graph.
  struct Mark {
    size_t events = 0;
    int calls = 0;
  };
  Mark mark() const { return {events_.size(), calls_}; }
  void rewind(Mark mark);
  // Drops all events but those of these calls, given in ascending order; the i-th becomes call i.
  void keep_only(std::span<const int> calls);
  void clear() { *this = {}; }
  // Returns true if the constructor made the record from a module tree.
  bool is_guess() const { return is_guess_; }

  // Returns the units in the order in which forward needs them.
  std::vector<int> forward_order() const;
  // Returns the same for backward, recomputation included. Successive needs of one unit count once.
  std::vector<int> backward_order() const;
  // Predicts backward_order from the forwards alone.
  std::vector<int> expected_backward_order() const;

  // A correct guess equals the pass that it predicted.
  bool operator==(const PassRecord& other) const { return events_ == other.events_; }

 private:
  std::vector<PassEvent> events_;
  int calls_ = 0;
  bool is_guess_ = false;
};

}  // namespace fsdp
