// A model whose units an engine has taken.
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_unit.h"

namespace fsdp {

// Constant from the engine's construction to its end, when the units go.
struct ShardedModel {
  const std::shared_ptr<torch::nn::Module> root;
  const Options options;
  std::vector<std::shared_ptr<EngineUnit>> units;  // the root first, each before those inside it

  // Returns the index of the unit called `fqn`. Errors: InvalidArgument that lists what exists.
  int find_unit(std::string_view fqn) const;
  // Calls `visit` with the modules of the unit that are no other unit's, outer ones first.
  void for_each_own_module(
      const EngineUnit& unit,
      const std::function<void(const std::string& fqn, torch::nn::Module& module)>& visit) const;
  // Some unit has gradients that no optimizer's zero_grad has cleared.
  bool has_gradients() const;
  // EngineUnit::follow_zero_grad of all units by policy. Requires: the clock's mutex.
  void follow_zero_grads() const;
  // Guards the modules' `.grad` anew: an optimizer's zero_grad takes the guards away, after a step
  // or between forward and backward.
  void guard_gradients() const;
  // The calls that are in the pass's record, in its order.
  std::vector<Call*> recorded_calls() const;
  // The record begins anew: calls that outlive the pass (a graph that is kept) are in it no more.
  void forget_records() const;
};

}  // namespace fsdp
