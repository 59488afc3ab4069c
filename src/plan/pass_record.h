// PassRecord lists the boundaries of a pass in order. A boundary is a point of forward or backward
// at which a unit's memory may change. Each pass writes a record and compares it with the record of
// the previous pass. The memory plan replays a record.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

enum class Boundary : uint8_t {
  kPreForward,     // a call of a unit begins
  kPostForward,    // the call has returned or thrown
  kBeginBackward,  // before the first kPreBackward; unit ignored
  kPreBackward,    // backward reaches an output of a call
  kIdle,           // the unit is idle in backward: other calls of it will still run
  kClose,          // the unit is finished (docs/closing.md)
  kEndBackward,    // unit ignored
};

struct PassEvent {
  Boundary boundary = Boundary::kPreForward;
  // For kPostForward, true if backward can reach the call's outputs. For kPreBackward and kClose,
  // true if gradients are captured (BackwardScheduler::captures).
  bool flag = false;
  int unit = 0;
  int call = -1;  // number of the call in the pass; -1 in backward
  bool operator==(const PassEvent&) const = default;
};

class PassRecord {
 public:
  PassRecord() = default;
  // Makes the guess that is used before the first pass. It assumes that units are called in the
  // order of registration and are nested as in the module tree. parents[i] is the unit around unit
  // i. The root is unit 0 and its own parent. recomputed[i] is true if backward runs unit i's
  // forward again. If `recomputed` is empty, no unit is recomputed.
  explicit PassRecord(std::span<const int> parents, const std::vector<bool>& recomputed = {});

  void add(const PassEvent& event) { events_.push_back(event); }
  int next_call() { return calls_++; }
  int calls() const { return calls_; }
  const std::vector<PassEvent>& events() const { return events_; }

  // The size of the record at some time. `rewind` drops all events that were added after the mark.
  // It is called if a forward left no graph.
  struct Mark {
    size_t events = 0;
    int calls = 0;
  };
  Mark mark() const { return {events_.size(), calls_}; }
  void rewind(Mark mark);
  // Drops all events except those of `calls`, which must be in ascending order. calls[i] becomes
  // call i.
  void keep_only(std::span<const int> calls);
  void clear() { *this = {}; }
  // Returns true if the constructor made the record from a module tree.
  bool is_guess() const { return is_guess_; }

  // Returns the units in the order in which forward needs them.
  std::vector<int> forward_order() const;
  // Returns the units in the order in which backward needs them, recomputation included. If the
  // same unit is needed several times in a row, it is listed once.
  std::vector<int> backward_order() const;
  // Predicts the result of backward_order from the forwards alone.
  std::vector<int> expected_backward_order() const;

  // Compares events only, so a correct guess equals the record of the pass that it predicted.
  bool operator==(const PassRecord& other) const { return events_ == other.events_; }

 private:
  std::vector<PassEvent> events_;
  int calls_ = 0;
  bool is_guess_ = false;
};

}  // namespace fsdp
