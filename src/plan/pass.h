// Pass is the policy of a pass. At each boundary of forward and backward it decides which units are
// unsharded, prefetched, awaited, opened, reduced and resharded. Engine and memory plan use the
// same policy. The engine applies it to real units as autograd reaches the boundaries. The memory
// plan applies it to counters, from a record of the boundaries. The policy handles integers only
// and is not thread-safe.
//
// BackwardScheduler (backward_scheduler.h) decides when a unit is finished in backward. The caller
// of a Pass reports its decisions by calling close() and idle().
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <span>
#include <vector>

#include "plan/pass_record.h"
#include "plan/unit_actions.h"
#include "plan/unit_order.h"
#include "plan/update_times.h"

namespace fsdp {

// A unit's rules for passes. The rules follow from the unit's options and placement.
struct UnitRules {
  bool reshard_after_forward = true;
  bool unshard_in_backward = true;
  bool is_gathered = true;  // false: parameters are resident, so nothing is prefetched
  int prefetch_units = 1;
};

class Pass {
 public:
  // `hint` is the expected pass. The last `kept_units` units of the expected forward, not counting
  // the root, stay unsharded from forward to backward. If `updates` is true, backward updates the
  // units. `actions` must outlive the Pass.
  Pass(UnitActions& actions, std::vector<UnitRules> rules, PassRecord hint, int kept_units = 0,
       bool updates = false);

  const std::vector<UnitRules>& rules() const { return rules_; }
  int kept_units() const { return kept_units_; }

  // ---- forward ----
  // Begins a forward outside backward. Called before the outermost call begins.
  void begin_forward();
  // Makes the unit's parameters readable. Returns the call's number in the record.
  int pre_forward(int unit);
  // Ends a call. `call` is the number that pre_forward returned, or -1 if the call was dropped from
  // the record in the meantime. `in_graph` is true if backward can reach the call's outputs.
  void post_forward(int unit, int call, bool in_graph);
  // Begin and end a forward inside a backward. The backward may belong to another engine.
  void pre_recompute(int unit);
  void post_recompute(int unit);
  // Return the number of forwards under way: of all units, or of one unit.
  int active_calls() const { return active_calls_; }
  int active_calls(int unit) const { return unit_calls_[unit]; }

  // ---- backward ----
  // Begins a backward. Called before its first pre_backward.
  void begin_backward();
  bool in_backward() const { return in_backward_; }
  // Unshards the unit unless its backward reads no parameters. Acquires memory for its gradients if
  // `captures`.
  void pre_backward(int unit, bool captures);
  // Reshards a unit that is idle: other calls of it will still run in this backward.
  void idle(int unit);
  // Reshards a finished unit and reduces or keeps its gradients. `captures` must equal the argument
  // of its pre_backward.
  void close(int unit, bool captures);
  // Ends a backward. Requires: all units are closed.
  void end_backward(bool captures);
  // [Note: a backward inside a forward] Units with a running call stay bound. Nothing is recorded
  // or prefetched, because the pass belongs to the forward, which continues. In all other respects
  // this is an ordinary backward.
  bool is_inside_forward() const { return forward_calls_ > 0; }
  // Cleans up after a failed backward, without communication. All partly captured gradients are
  // dropped. If a forward runs around the backward, that forward continues.
  void abandon();
  // Returns true if the backward under way has updated the unit.
  bool is_updated(int unit) const { return in_backward_ && updates_.is_updated(unit); }

  // Sets how passes treat gradients. With kNone, close keeps whole gradients until a later pass
  // reduces them (GradSync).
  void set_sync(GradientSync sync) { sync_ = sync; }
  GradientSync sync() const { return sync_; }
  bool reduces() const { return sync_ != GradientSync::kNone; }

  // ---- the record ----
  const PassRecord& hint() const { return hint_; }
  // Sets the pass that the next pass is expected to equal. Requires: no pass is under way.
  void expect(PassRecord hint);
  // Makes the pass that has just ended the hint for the next pass. Returns true if the new hint
  // differs from the old one. The old hint stays if the pass captured no gradients, or if its
  // record has no forwards. It has none if the backward ran a graph whose forwards are in the
  // record of an earlier pass.
  bool take_record(bool captures);
  // Returns true if the record is much longer than the hint: if it has more than twice the calls of
  // the hint and of the last keep_only together, plus a margin. This happens, for example, if a
  // program drops the results of many forwards without a backward.
  bool is_long() const { return record_.calls() > 2 * kept_calls_ + 2 * hint_.calls() + 64; }
  int recorded_calls() const { return record_.calls(); }
  size_t recorded_events() const { return record_.events().size(); }
  // Drops all recorded calls except `calls`; see PassRecord::keep_only.
  void keep_only(std::span<const int> calls);

 private:
  int unit_count() const { return static_cast<int>(rules_.size()); }
  bool sums_across() const { return sync_ == GradientSync::kAll; }
  void note_in_backward(const PassEvent& event);
  void begin_call(int unit, const std::vector<int>& ahead);
  void end_call(int unit);
  // Unshards the unit if it is sharded.
  void demand(int unit) {
    if (actions_.parameters(unit) != ParameterState::kSharded) return;
    actions_.unshard(unit, Urgency::kDemand);
  }
  void wait(int unit);
  void prefetch(const std::vector<int>& ahead);
  // Moves the position in the backward order to `unit` and returns the units to prefetch.
  std::vector<int> needed_in_backward(int unit);
  void reshard(int unit);
  void choose_kept();
  // Returns true if the unit is resharded between forward and backward.
  bool goes(int unit) const { return rules_[unit].reshard_after_forward && !is_kept_[unit]; }

  UnitActions& actions_;
  const std::vector<UnitRules> rules_;
  const int kept_units_;
  UpdateTimes updates_;
  std::vector<char> is_kept_;    // by unit: true for the last kept_units_ units
  std::vector<int> unit_calls_;  // forwards under way, by unit
  PassRecord hint_;
  PassRecord record_;  // record of the pass under way
  UnitOrder order_;
  PassRecord::Mark forward_began_;
  bool forward_in_graph_ = false;
  bool in_backward_ = false;
  GradientSync sync_ = GradientSync::kAll;
  int active_calls_ = 0;
  int forward_calls_ = 0;  // calls under way outside backward
  int kept_calls_ = 0;     // number of calls left by the last keep_only
};

// Calls the functions of `pass` for the boundaries of a recorded pass. `at_backward` is called
// before the backward of the pass begins.
void play(const PassRecord& record, Pass& pass, const std::function<void()>& at_backward = {});

}  // namespace fsdp
