// ScriptedUnits: units that log the actions of a Pass, and passes over a chain of units.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/pass.h"

namespace fsdp::testing {

class ScriptedUnits : public UnitActions {
 public:
  explicit ScriptedUnits(int count)
      : states_(count), gradients_(count, GradientState::kNone), inside_(count) {}

  ParameterState parameters(int unit) const override { return states_[unit]; }
  GradientState gradients(int unit) const override { return gradients_[unit]; }
  bool unshard(int unit, Urgency urgency) override {
    const bool ahead = urgency == Urgency::kPrefetch;
    if (ahead && free_slots == 0) return false;
    if (ahead) --free_slots;
    states_[unit] = ParameterState::kGathering;
    note(ahead ? "ahead" : "unshard", unit);
    return true;
  }
  void wait_for_unshard(int unit) override {
    states_[unit] = ParameterState::kUnsharded;
    note("wait", unit);
  }
  void reshard(int unit) override {
    CHECK(states_[unit] != ParameterState::kSharded);
    states_[unit] = ParameterState::kSharded;
    note("reshard", unit);
  }
  void open_gradients(int unit, GradientSync sync) override {
    gradients_[unit] = GradientState::kCapturing;
    note(sync == GradientSync::kNone ? "open to keep" : "open", unit);
  }
  void keep_gradients(int unit) override {
    gradients_[unit] = GradientState::kKept;
    note("keep", unit);
  }
  void reduce(int unit, bool across) override {
    gradients_[unit] = GradientState::kNone;
    inside_[unit] = across ? 0 : 1;
    note(across ? "reduce" : "reduce inside", unit);
  }
  void sum_across(int unit) override {
    if (std::exchange(inside_[unit], 0) != 0) note("across", unit);
  }
  void update(int unit) override { note("update", unit); }
  void abandon_gradients(int unit) override {
    gradients_[unit] = GradientState::kNone;
    note("abandon", unit);
  }

  // Returns the actions since the previous call, such as "unshard 0, wait 0".
  std::string taken() { return std::exchange(log_, {}); }

  int free_slots = 100;

 private:
  void note(std::string_view what, int unit) {
    log_ += fmt::format("{}{} {}", log_.empty() ? "" : ", ", what, unit);
  }

  std::vector<ParameterState> states_;
  std::vector<GradientState> gradients_;
  std::vector<char> inside_;  // true: reduced only within groups
  std::string log_;
};

inline const PassRecord kRootAndTwo(std::vector<int>{0, 0, 0});  // a root with units 1 and 2

// Reports a pass over a chain as the engine does: the root calls the units of `forward` one after
// another. Calls `after_each` after each boundary of a unit. Returns true if the pass differed from
// the prediction.
inline bool run_chain(
    Pass& pass, const std::vector<int>& forward = {1, 2},
    const std::function<void()>& after_each = [] {}) {
  const auto told = [&](auto value) {
    after_each();
    return value;
  };
  pass.begin_forward();
  const int root = told(pass.pre_forward(0));
  for (const int unit : forward) {
    const int call = told(pass.pre_forward(unit));
    pass.post_forward(unit, call, true);
    after_each();
  }
  pass.post_forward(0, root, true);
  after_each();
  pass.begin_backward();
  pass.pre_backward(0, true);
  after_each();
  for (auto unit = forward.rbegin(); unit != forward.rend(); ++unit) {
    pass.pre_backward(*unit, true);
    after_each();
    pass.close(*unit, true);
    after_each();
  }
  pass.close(0, true);
  after_each();
  pass.end_backward(true);
  after_each();
  return pass.take_record(true);
}

// Returns the actions at each boundary of run_chain.
inline std::vector<std::string> asked_in_chain(Pass& pass, ScriptedUnits& units,
                                               const std::vector<int>& forward = {1, 2}) {
  std::vector<std::string> asked;
  run_chain(pass, forward, [&] { asked.push_back(units.taken()); });
  return asked;
}

inline void check_same(const std::vector<std::string>& asked,
                       const std::vector<std::string>& expected) {
  REQUIRE(asked.size() == expected.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    CAPTURE(i);
    CHECK(asked[i] == expected[i]);
  }
}

}  // namespace fsdp::testing
