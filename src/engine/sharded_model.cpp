#include "engine/sharded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>

#include "fsdp/error.h"

namespace fsdp {

int ShardedModel::find_unit(std::string_view fqn) const {
  std::string known;
  for (const auto& unit : units) {
    if (unit->shard->fqn() == fqn) return unit->index;
    known += fmt::format("{}'{}'", known.empty() ? "" : ", ", unit->shard->fqn());
  }
  throw InvalidArgument({.what = fmt::format("there is no unit '{}'", fqn),
                         .hint = fmt::format("use one of {}", known)});
}

void ShardedModel::for_each_own_module(
    const EngineUnit& unit,
    const std::function<void(const std::string& fqn, torch::nn::Module& module)>& visit) const {
  // The modules of all units. The walk below stops at these modules.
  std::unordered_set<const torch::nn::Module*> of_units;
  for (const auto& each : units) {
    for (const NamedModule& own : each->place.modules) of_units.insert(own.module.get());
  }
  const auto walk = [&](const auto& self, const std::string& fqn,
                        torch::nn::Module& module) -> void {
    visit(fqn, module);
    for (const auto& child : module.named_children()) {
      if (of_units.contains(child.value().get())) continue;
      self(self, join_fqn(fqn, child.key()), *child.value());
    }
  };
  for (const NamedModule& own : unit.place.modules) walk(walk, own.fqn, *own.module);
}

void ShardedModel::guard_gradients() const {
  for (const auto& unit : units) unit->shard->parameters().guard_gradients();
}

void ShardedModel::follow_zero_grads() const {
  for (const auto& unit : units) {
    if (unit->is_by_policy()) unit->follow_zero_grad();
  }
}

bool ShardedModel::has_gradients() const {
  return std::ranges::any_of(units, [](const auto& unit) {
    const MainGradients& main = unit->shard->gradients().main();
    // LibTorch's zero_grad drops the `.grad` of the main shards' views without notifying the
    // engine, so are_cleared() checks it.
    return main.are_ready() && !main.are_cleared();
  });
}

bool ShardedModel::has_views() const {
  return std::ranges::any_of(units,
                             [](const auto& unit) { return unit->shard->main().has_views(); });
}

void ShardedModel::sync_changes(Stream& stream, bool rebinds) const {
  bool issued = false;
  for (const auto& unit : units) issued = unit->shard->issue_digests() || issued;
  if (issued) stream.synchronize();  // one wait for all units
  for (const auto& unit : units) unit->shard->sync_changes(rebinds);
}

void ShardedModel::check_touched_units() const {
  for (const auto& unit : units) {
    if (!unit->is_by_policy()) continue;
    unit->shard->parameters().check_bindings();
    unit->follow_zero_grad();
    unit->mark_unhooked();
  }
}

void ShardedModel::forget_records() const {
  for (const auto& unit : units) {
    for (Call* call : unit->calls) call->record = -1;
  }
}

std::vector<Call*> ShardedModel::recorded_calls() const {
  std::vector<Call*> recorded;
  for (const auto& unit : units) {
    std::ranges::copy_if(unit->calls, std::back_inserter(recorded),
                         [](const Call* call) { return call->record >= 0; });
  }
  std::ranges::sort(recorded, {}, &Call::record);
  return recorded;
}

}  // namespace fsdp
