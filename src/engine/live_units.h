// The units of an engine, as the policy of a pass (plan/pass.h) moves them.
#pragma once

#include <string_view>

#include "plan/unit_actions.h"

namespace fsdp {

class EngineState;

class LiveUnits : public UnitActions {
 public:
  explicit LiveUnits(EngineState& engine) : engine_(engine) {}

  ParameterState parameters(int unit) const override;
  GradientState gradients(int unit) const override;
  bool unshard(int unit, Urgency urgency) override;
  void wait_for_unshard(int unit) override;
  void reshard(int unit) override;
  void open_gradients(int unit, GradientSync sync) override;
  void keep_gradients(int unit) override;
  void reduce(int unit, bool across) override;
  void sum_across(int unit) override;
  void abandon_gradients(int unit) override;

 private:
  EngineState& engine_;
};

}  // namespace fsdp
