// What the ranks of a job compare when an engine is made: lines that people can read.
#pragma once

#include <fsdp/options.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/module_walk.h"
#include "plan/pass.h"

namespace fsdp {

std::string name_or_unset(const std::optional<DType>& dtype);
std::vector<std::string> describe_options(const Options& options);
// `rules` and `own` of each unit; own says everything.
std::vector<std::string> describe_model(const std::vector<FoundUnit>& units,
                                        const std::vector<UnitRules>& rules,
                                        const std::vector<UnitOptions>& own);

}  // namespace fsdp
