// What is said of each unit: Options, and where they differ Options::unit_options.
#pragma once

#include <fsdp/options.h>

#include <vector>

#include "engine/module_walk.h"

namespace fsdp {

// Returns the options of each unit, every field set but a param_dtype that nobody gives.
// Errors: InvalidArgument for values that cannot be, and for what a unit by policy cannot do.
std::vector<UnitOptions> own_options_of(const std::vector<FoundUnit>& units,
                                        const Options& options);

}  // namespace fsdp
