// The policy of a pass: which units are unsharded, fetched ahead, awaited, opened, reduced and
// resharded at each boundary of forward and backward. It stands here once: the engine plays it with
// real units as autograd reaches the boundaries, the memory plan with counters from a record of
// them. Integers only; not thread-safe.
//
// Which unit is finished in backward, and when, is the clock's (backward_scheduler.h); whoever drives a
// pass reports it by close() and idle().
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <span>
#include <vector>

#include "plan/pass_record.h"
#include "plan/unit_actions.h"
#include "plan/unit_order.h"

namespace fsdp {

// What a unit's options and placement say about its passes.
struct UnitRules {
  bool reshard_after_forward = true;
  bool unshard_in_backward = true;
  bool is_gathered = true;  // false: nothing to fetch ahead, its parameters are resident
  int prefetch_units = 1;
};

class Pass {
 public:
  // `hint`: the pass that is expected; the last `kept_units` of its forward, the root not counted,
  // stay from forward to backward. Requires: `actions` lives as long.
  Pass(UnitActions& actions, std::vector<UnitRules> rules, PassRecord hint, int kept_units = 0);

  const std::vector<UnitRules>& rules() const { return rules_; }
  int kept_units() const { return kept_units_; }

  // ---- forward ----
  // The outermost call of a forward outside backward begins.
  void begin_forward();
  // Makes the unit's parameters readable. Returns the call's number in the record.
  int pre_forward(int unit);
  // `call`: what pre_forward returned, -1 if the record has forgotten it since. `in_graph`:
  // backward can reach what the call returned.
  void post_forward(int unit, int call, bool in_graph);
  // A forward inside a backward, of any engine's.
  void pre_recompute(int unit);
  void post_recompute(int unit);
  // Forwards under way, of all units and of one.
  int active_calls() const { return active_calls_; }
  int active_calls(int unit) const { return unit_calls_[unit]; }

  // ---- backward ----
  void begin_backward();
  bool in_backward() const { return in_backward_; }
  void pre_backward(int unit, bool captures);
  // Over for now.
  void idle(int unit);
  // Finished. `captures` as at its pre_backward.
  void close(int unit, bool captures);
  // Everything is closed.
  void end_backward(bool captures);
  // [Note: a backward inside a forward] Units with a call that runs stay seated; the rest is as in
  // any backward, but that nothing is recorded or fetched ahead: the pass is that of the forward,
  // which goes on.
  bool is_inside_forward() const { return forward_calls_ > 0; }
  // A backward failed: nothing is communicated any more, and nothing half-captured survives. A
  // forward around it goes on.
  void abandon();

  // kNone: closing keeps whole gradients, until a pass that reduces them (GradSync).
  void set_sync(GradientSync sync) { sync_ = sync; }
  GradientSync sync() const { return sync_; }
  bool reduces() const { return sync_ != GradientSync::kNone; }

  // ---- the record ----
  const PassRecord& hint() const { return hint_; }
  // The next pass will be like `hint`. Requires: between passes.
  void expect(PassRecord hint);
  // After end_backward: the pass becomes the hint of the next. Returns whether it differs from the
  // one before. A pass that did not capture, or of forwards that an earlier pass has taken, leaves
  // the hint as it was.
  bool take_record(bool captures);
  // Far more calls than a pass has: forwards may have been dropped without a backward.
  bool is_long() const { return record_.calls() > 2 * kept_calls_ + 2 * hint_.calls() + 64; }
  int recorded_calls() const { return record_.calls(); }
  void keep_only(std::span<const int> calls);

 private:
  int unit_count() const { return static_cast<int>(rules_.size()); }
  bool sums_across() const { return sync_ == GradientSync::kAll; }
  void note_in_backward(const PassEvent& event);
  void begin_call(int unit, const std::vector<int>& ahead);
  void end_call(int unit);
  void wait(int unit);
  void prefetch(const std::vector<int>& ahead);
  // Returns what to fetch ahead.
  std::vector<int> needed_in_backward(int unit);
  void reshard(int unit);
  void choose_kept();
  // Does not stay between forward and backward.
  bool goes(int unit) const { return rules_[unit].reshard_after_forward && !is_kept_[unit]; }

  UnitActions& actions_;
  const std::vector<UnitRules> rules_;
  const int kept_units_;
  std::vector<char> is_kept_;    // by unit, of those that kept_units_ chooses
  std::vector<int> unit_calls_;  // forwards under way, by unit
  PassRecord hint_;
  PassRecord record_;  // of the pass under way
  UnitOrder order_;
  PassRecord::Mark forward_began_;
  bool forward_in_graph_ = false;
  bool in_backward_ = false;
  GradientSync sync_ = GradientSync::kAll;
  int active_calls_ = 0;
  int forward_calls_ = 0;  // of these, outside backward
  int kept_calls_ = 0;     // by keep_only
};

// Plays a recorded pass, as the next one will be if it is like it.
// `at_backward` is called where the first backward begins.
void play(const PassRecord& record, Pass& pass, const std::function<void()>& at_backward = {});

}  // namespace fsdp
