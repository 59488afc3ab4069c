// ShardedModel: a model and its units, which an engine owns.
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_unit.h"

namespace fsdp {

// A model and its units. Constant from the engine's construction until its destruction, which
// destroys the units.
struct ShardedModel {
  const std::shared_ptr<torch::nn::Module> root;
  const Options options;
  std::vector<std::shared_ptr<EngineUnit>> units;  // in pre-order, the root first

  // Returns the index of the unit with this FQN.
  // Errors: InvalidArgument if there is no such unit; the error lists the existing units.
  int find_unit(std::string_view fqn) const;
  // Calls `visit` with the modules that belong to this unit and to no other unit, outer modules
  // first.
  void for_each_own_module(
      const EngineUnit& unit,
      const std::function<void(const std::string& fqn, torch::nn::Module& module)>& visit) const;
  // Returns true if some unit has gradients that no zero_grad of an optimizer has cleared.
  bool has_gradients() const;
  // Returns true if some code may hold views of main shards.
  bool has_views() const;
  // Handles changes of main shards by an optimizer, a load or the user. Parameters that are bound
  // to old values are resharded (if `rebinds`), graphs that saved them will throw, and resident
  // copies are renewed. `stream` is MainPlace::stream().
  void sync_changes(Stream& stream, bool rebinds) const;
  // Detects two changes that modules of units chosen by policy do not report to the engine:
  // replaced storage and zero_grad. Called when a forward begins.
  void check_touched_units() const;
  // Calls EngineUnit::follow_zero_grad of all units chosen by policy.
  // Requires: the caller holds the backward scheduler's mutex.
  void follow_zero_grads() const;
  // Restores the guards in `.grad` of the modules' parameters ([Note: guarded gradients] in
  // parameter_bindings.h). An optimizer's zero_grad removes the guards, after a step or between
  // forward and backward.
  void guard_gradients() const;
  // Returns the calls in the record of the pass, in the order of the record.
  std::vector<Call*> recorded_calls() const;
  // Removes all calls from the record, so a new record begins. The calls of a kept graph still
  // exist afterwards.
  void forget_records() const;
};

}  // namespace fsdp
