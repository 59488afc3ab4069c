// UnitPlan: the options of one unit, merged from Options and Options::unit_options.
#pragma once

#include <fsdp/options.h>

#include <string>
#include <vector>

#include "engine/module_walk.h"
#include "plan/pass.h"
#include "shard/precision.h"

namespace fsdp {

struct ShardContext;

// The merged options of one unit, and the unit's types and pass rules, which follow from them.
struct UnitPlan {
  UnitOptions options;  // every field is set
  Precision precision;  // options.mixed_precision
  UnitRules rules;

  // Returns the plan as one line, which must be equal on all ranks.
  std::string to_string() const;
};

// Returns the plan of each unit.
// Errors: InvalidArgument if an option has an invalid value, or if a unit chosen by policy has an
//   option that it does not support.
std::vector<UnitPlan> plan_units(const std::vector<FoundUnit>& units, const Options& options,
                                 const ShardContext& context);

// Return the lines that ranks compare when an engine is made. The lines are readable because errors
// quote them.
std::vector<std::string> describe_options(const Options& options);
std::vector<std::string> describe_model(const std::vector<FoundUnit>& units,
                                        const std::vector<UnitPlan>& plans);

}  // namespace fsdp
