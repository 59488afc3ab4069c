// Applies an optimizer's predicates to the parameters of an engine, once, when it is made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/sharded_model.h"
#include "fsdp/optim.h"

namespace fsdp {

// Returns what `match` chooses, frozen parameters too; all if it is empty.
// Errors: InvalidArgument if it chooses none.
ChosenParameters choose_parameters(const ShardedModel& model, const ParameterMatch& match,
                                   std::string_view optimizer);

// Returns the FQNs of the chosen parameters; with `trainable` of those that require a gradient now.
std::vector<std::string> names_of(const ShardedModel& model, const ChosenParameters& chosen,
                                  bool trainable = false);

// Returns what tells the optimizer from others of the engine: "AdamW", "AdamW of 'generator'".
std::string describe_optimizer(std::string_view name, const ChosenParameters& chosen,
                               const std::vector<std::string>& parameters);

struct GroupedParameters {
  std::vector<OptimizerParamGroup> groups;  // the default one first
  std::vector<std::vector<int>> group_of;   // by unit and parameter; -1 for one that is not chosen
};

// The settings of the default group; `lr` lives as long as the result.
struct DefaultGroup {
  const double* lr;
  double weight_decay;
};

// Errors: InvalidArgument, naming the group, for one that has no parameter, for a name given twice,
// and for settings that are negative or not finite.
GroupedParameters group_parameters(const ShardedModel& model, const ChosenParameters& chosen,
                                   std::string_view optimizer, const DefaultGroup& all_others,
                                   const std::vector<ParameterGroup>& options);

}  // namespace fsdp
