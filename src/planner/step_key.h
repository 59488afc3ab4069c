// Decides if two planned runs would see the same step.
#pragma once

#include <fsdp/options.h>
#include <fsdp/plan.h>

#include <string>
#include <vector>

#include "engine/engine_parts.h"
#include "plan/pass_record.h"
#include "plan/shard_layout.h"

namespace fsdp {

// The properties of a unit that LibTorch's operators depend on.
struct UnitKey {
  std::string fqn;
  UnitOptions options;
  std::vector<ParameterSpec> parameters;
  std::vector<bool> lends;  // by parameter: its gradient is reduced zero-copy
  bool scatters_gradients = false;
  bool captures_in_place = false;
  bool operator==(const UnitKey&) const = default;
};

// The key of a step: everything that LibTorch's bytes and the order of units may depend on. Whole
// options are compared, so that a new option counts without a change here. Options that have no
// effect on a step, or show in the units, have their default value.
struct StepKey {
  // Requires: the engine has run no pass yet, so that its hint is the guess, which shows the units
  // that are recomputed.
  StepKey(const PlanRequest& request, const EngineParts& engine);
  bool operator==(const StepKey&) const = default;

  DeviceKind device = DeviceKind::kCpu;
  bool shares_gpu = false;
  Options options;
  std::vector<UnitKey> units;
  PassRecord guess;
};

}  // namespace fsdp
