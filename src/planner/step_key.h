// Decides whether two planned runs see the same step.
#pragma once

#include <fsdp/options.h>
#include <fsdp/plan.h>

#include <string>
#include <vector>

#include "engine/engine_parts.h"
#include "plan/pass_record.h"
#include "plan/shard_layout.h"

namespace fsdp {

// The properties of a unit on which LibTorch's operators depend.
struct UnitKey {
  std::string fqn;
  UnitOptions options;
  std::vector<ParameterSpec> parameters;
  std::vector<bool> lends;  // for each parameter: true if its gradient is reduced zero-copy
  bool scatters_gradients = false;
  bool captures_in_place = false;
  bool operator==(const UnitKey&) const = default;
};

// The key of a step. It holds everything on which LibTorch's bytes and the order of units may
// depend. Options are compared as a whole, so that a new option is included without a change here.
// Options that do not affect a step, or that affect it only through the units, are reset to their
// defaults.
struct StepKey {
  // Requires: the engine has run no pass yet. Its schedule then holds a guess of the order of
  //   units, and the guess shows which units are recomputed.
  StepKey(const PlanRequest& request, const EngineParts& engine);
  bool operator==(const StepKey&) const = default;

  DeviceKind device = DeviceKind::kCpu;
  bool shares_gpu = false;
  Options options;
  std::vector<UnitKey> units;
  PassRecord guess;
};

}  // namespace fsdp
