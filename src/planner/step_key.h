// Decides whether one run's step shows what another's would.
#pragma once

#include <fsdp/options.h>
#include <fsdp/plan.h>

#include <string>
#include <vector>

#include "engine/engine_parts.h"
#include "plan/pass_record.h"
#include "plan/shard_layout.h"

namespace fsdp {

// A unit as LibTorch's operators meet it.
struct UnitKey {
  std::string fqn;
  UnitOptions options;
  std::vector<ParameterSpec> parameters;
  std::vector<bool> lends;  // by parameter: its gradient stays LibTorch's until it is reduced
  bool scatters_gradients = false;
  bool captures_in_place = false;
  bool operator==(const UnitKey&) const = default;
};

// Everything that LibTorch's bytes of a step, and the order of its units, may depend on. Keys are
// compared as wholes, so that a new option counts by itself; what counts for nothing, or shows in
// the units, is at its default here.
struct StepKey {
  // Requires: before the engine's first pass, whose guess tells which units are recomputed.
  StepKey(const PlanRequest& request, const EngineParts& engine);
  bool operator==(const StepKey&) const = default;

  DeviceKind device = DeviceKind::kCpu;
  bool shares_gpu = false;
  Options options;
  std::vector<UnitKey> units;
  PassRecord guess;
};

}  // namespace fsdp
