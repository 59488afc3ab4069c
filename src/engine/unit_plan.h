// The plan of each unit: Options, and where they differ Options::unit_options.
#pragma once

#include <fsdp/options.h>

#include <string>
#include <vector>

#include "engine/module_walk.h"
#include "plan/pass.h"
#include "shard/precision.h"

namespace fsdp {

struct ShardContext;

struct UnitPlan {
  UnitOptions options;  // every field is set
  Precision precision;  // options.mixed_precision
  UnitRules rules;

  // A line, which is equal on all ranks.
  std::string to_string() const;
};

// Errors: InvalidArgument for values that cannot be, and for what a unit by policy cannot do.
std::vector<UnitPlan> plan_units(const std::vector<FoundUnit>& units, const Options& options,
                                 const ShardContext& context);

// What the ranks of a job compare when an engine is made: lines that people can read.
std::vector<std::string> describe_options(const Options& options);
std::vector<std::string> describe_model(const std::vector<FoundUnit>& units,
                                        const std::vector<UnitPlan>& plans);

}  // namespace fsdp
