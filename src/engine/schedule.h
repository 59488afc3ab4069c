// The order in which a pass uses its units: recorded every pass, used as a hint by the next one,
// and played through MemoryPlan before it runs. Integers only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shard/memory_plan.h"

namespace fsdp {

// One forward of a unit in a recorded pass: from `enter` to `exit` (positions in one sequence of
// enters and exits), so that calls nest as forwards do.
struct RecordedCall {
  int unit = 0;
  int enter = 0;
  int exit = 0;
  bool fires = true;  // its pre_backward ran in the pass's backward
  bool operator==(const RecordedCall&) const = default;
};

// What a unit's options say, as far as order and memory are concerned.
struct UnitRules {
  bool reshard_after_forward = true;
  bool unshard_in_backward = true;
  bool has_trainable = true;
  bool captures_in_place = false;  // gradients arrive in the main gradient, without a reduce slot
  int prefetch_units = 1;
};

class Schedule {
 public:
  // The guess before the first pass: units in registration order, nested as in the module tree.
  // parents[i] is the enclosing unit of unit i; the root is 0 and its own parent.
  explicit Schedule(std::span<const int> parents);

  // Recording. A forward outside backward begins at its outermost call.
  void begin_forward();
  int enter(int unit);  // returns the call's record
  void exit(int record);
  // Forgets the forward just recorded: it made no graph.
  void drop_forward();
  void begin_backward();
  void fired(int record);
  void needed_in_backward(int unit);
  // Takes the pass as the next hint. Returns true if it differs from the hint before.
  bool end_pass();
  void abandon_pass();
  // Far more calls are recorded than a pass has: forwards may have been dropped without a backward.
  bool is_long() const { return calls_.size() > 2 * kept_ + 2 * hint_.size() + 64; }
  size_t recorded_calls() const { return calls_.size(); }
  // Drops all calls but these, in ascending order; the i-th of them becomes record i.
  void keep_only(std::span<const int> records);

  // The next `depth` distinct other units after the place where `unit` is now, by the hint.
  std::vector<int> ahead_in_forward(int depth) const;
  std::vector<int> ahead_in_backward(int depth) const;

  // The slots that a pass like the hint takes and gives, in order, under the engine's rules.
  std::vector<MemoryEvent> memory_events(std::span<const UnitRules> rules) const;
  const std::vector<RecordedCall>& hint() const { return hint_; }

 private:
  std::vector<RecordedCall> hint_;
  std::vector<int> forward_hint_;   // units by enter
  std::vector<int> backward_hint_;  // units by first need in backward
  bool backward_seen_ = false;

  std::vector<RecordedCall> calls_;
  std::vector<int> needs_;
  int position_ = 0;
  int forward_start_ = 0;  // first call of the forward under way
  size_t kept_ = 0;        // by keep_only
  size_t forward_cursor_ = 0;
  size_t backward_cursor_ = 0;
};

}  // namespace fsdp
