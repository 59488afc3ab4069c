// ShardedModel: a model whose units an engine owns.
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_unit.h"

namespace fsdp {

// A model and its units. Constant from the engine's construction to its end, which destroys the
// units.
struct ShardedModel {
  const std::shared_ptr<torch::nn::Module> root;
  const Options options;
  std::vector<std::shared_ptr<EngineUnit>> units;  // the root first, each before those inside it

  // Returns the index of the unit called `fqn`. Errors: InvalidArgument that lists what exists.
  int find_unit(std::string_view fqn) const;
  // Calls `visit` with the modules of the unit that belong to no other unit, outer ones first.
  void for_each_own_module(
      const EngineUnit& unit,
      const std::function<void(const std::string& fqn, torch::nn::Module& module)>& visit) const;
  // Returns whether some unit has gradients that no optimizer's zero_grad has cleared.
  bool has_gradients() const;
  // Calls EngineUnit::follow_zero_grad of all units by policy.
  // Requires: the backward scheduler's mutex.
  void follow_zero_grads() const;
  // Restores the guards in the modules' `.grad`: an optimizer's zero_grad removes them, after a
  // step or between forward and backward.
  void guard_gradients() const;
  // Returns the calls that are in the pass's record, in its order.
  std::vector<Call*> recorded_calls() const;
  // Removes all calls from the record, which begins anew. Calls of a graph that is kept outlive it.
  void forget_records() const;
};

}  // namespace fsdp
