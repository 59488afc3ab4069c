// Applies an optimizer's predicates to the parameters of an engine. Done once, at construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/sharded_model.h"
#include "fsdp/optim.h"

namespace fsdp {

// Returns the parameters that `match` chooses, frozen ones too; all if it is empty.
// Errors: InvalidArgument if it chooses none.
ChosenParameters choose_parameters(const ShardedModel& model, const ParameterMatch& match,
                                   std::string_view optimizer);

// Returns the FQNs of the chosen parameters; with `trainable` of those that require a gradient now.
std::vector<std::string> names_of(const ShardedModel& model, const ChosenParameters& chosen,
                                  bool trainable = false);

// Returns a name that distinguishes the optimizer from others of the engine: "AdamW", "AdamW of
// 'generator'".
std::string describe_optimizer(std::string_view name, const ChosenParameters& chosen,
                               const std::vector<std::string>& parameters);

// The groups of an optimizer, and the group of each parameter.
struct GroupedParameters {
  std::vector<OptimizerParamGroup> groups;  // the default one first
  std::vector<std::vector<int>> group_of;   // by unit and parameter; -1 for one that is not chosen
};

// The settings of the default group. `lr` outlives the result.
struct DefaultGroup {
  const double* lr;
  double weight_decay;
};

// Returns the groups.
// Errors: InvalidArgument that names the group, for one without a parameter, for a name that occurs
// twice, and for settings that are negative or not finite.
GroupedParameters group_parameters(const ShardedModel& model, const ChosenParameters& chosen,
                                   std::string_view optimizer, const DefaultGroup& all_others,
                                   const std::vector<ParameterGroup>& options);

}  // namespace fsdp
