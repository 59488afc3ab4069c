// Applies an optimizer's predicates to the parameters of an engine, once, at the optimizer's
// construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/sharded_model.h"
#include "fsdp/optim.h"

namespace fsdp {

// Returns the parameters that `match` accepts, including frozen ones. If `match` is empty, returns
// all parameters.
// Errors: InvalidArgument if `match` accepts none.
ChosenParameters choose_parameters(const ShardedModel& model, const ParameterMatch& match,
                                   std::string_view optimizer);

// Returns the FQNs of the chosen parameters. If `trainable` is true, returns only the FQNs of
// parameters that require a gradient now.
std::vector<std::string> names_of(const ShardedModel& model, const ChosenParameters& chosen,
                                  bool trainable = false);

// Returns a name that distinguishes the optimizer from other optimizers of the engine: "AdamW",
// "AdamW of 'generator'".
std::string describe_optimizer(std::string_view name, const ChosenParameters& chosen,
                               const std::vector<std::string>& parameters);

// The groups of an optimizer, and the group of each parameter.
struct GroupedParameters {
  std::vector<OptimizerParamGroup> groups;  // the default group first
  std::vector<std::vector<int>> group_of;   // by unit and parameter; -1: not trained
};

// The settings of the default group. `lr` must outlive the groups that are made from it.
struct DefaultGroup {
  const double* lr;
  double weight_decay;
};

// Returns the optimizer's groups and the group of each parameter.
// Errors: InvalidArgument that names the group if a group matches no parameter, if a name occurs
//   twice, or if a setting is negative or not finite.
GroupedParameters group_parameters(const ShardedModel& model, const ChosenParameters& chosen,
                                   std::string_view optimizer, const DefaultGroup& all_others,
                                   const std::vector<ParameterGroup>& options);

}  // namespace fsdp
