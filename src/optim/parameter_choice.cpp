#include "optim/parameter_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

// Returns a parameter in the form in which predicates get it: without a view of its shard.
ShardedParameter described(const ShardUnit& shard, size_t parameter) {
  const ParameterSpec& spec = shard.layout().parameters()[parameter];
  return {.fqn = spec.fqn,
          .shape = spec.shape,
          .trainable = shard.tensors()[parameter].requires_grad(),
          .begin = 0,
          .local = {}};
}

// Calls visit(unit, parameter) for every parameter of the model, in the order of units.
template <class Visit>
void for_each_parameter(const ShardedModel& model, const Visit& visit) {
  for (const auto& unit : model.units) {
    for (size_t i = 0; i < unit->shard->tensors().size(); ++i) {
      visit(*unit, static_cast<int>(i));
    }
  }
}

// Returns the innermost module that contains all parameters: "decoder" for "decoder.norm.weight"
// and "decoder.norm2.weight". Returns an empty string if there is none.
std::string module_of_all(const std::vector<std::string>& fqns) {
  std::string_view common = fqns.front();
  common = common.substr(0, common.find_last_of('.') + 1);  // with its dot
  for (const std::string& fqn : fqns) {
    while (!std::string_view(fqn).starts_with(common)) {
      const size_t dot = common.substr(0, common.size() - 1).find_last_of('.');
      common = common.substr(0, dot + 1);  // empty if there is no dot
    }
  }
  return std::string(common.substr(0, common.empty() ? 0 : common.size() - 1));
}

void require_setting(bool holds, std::string_view group, std::string_view setting, double value) {
  if (holds && std::isfinite(value)) return;
  throw InvalidArgument({.what = fmt::format("group '{}': {} is {}", group, setting, value),
                         .hint = "use finite learning rates, scales and decays of 0 or more"});
}

// Throws if a group has no parameter, because its settings would silently have no effect.
void require_members(const GroupedParameters& grouped, const std::vector<ParameterGroup>& options,
                     std::string_view optimizer) {
  for (size_t i = 1; i < grouped.groups.size(); ++i) {
    const auto has_it = [&](const std::vector<int>& of) {
      return std::ranges::find(of, static_cast<int>(i)) != of.end();
    };
    if (std::ranges::any_of(grouped.group_of, has_it)) continue;
    throw InvalidArgument(
        {.what =
             fmt::format("group '{}' of {} has no parameter", grouped.groups[i].name(), optimizer),
         .where = "ParameterGroup",
         .cause = options[i - 1].match
                      ? "`match` selects no parameter, or only parameters of earlier groups"
                      : "it has no `match`",
         .hint = "compare `match` with the names of Engine::sharded_parameters(), or remove the "
                 "group"});
  }
}

std::vector<OptimizerParamGroup> make_groups(const DefaultGroup& all_others,
                                             const std::vector<ParameterGroup>& options,
                                             std::string_view optimizer) {
  std::vector<OptimizerParamGroup> groups;
  groups.reserve(options.size() + 1);
  // A group without a rate of its own reads the optimizer's rate through a pointer, so it follows a
  // scheduler that changes this rate.
  groups.emplace_back("default", 1.0, all_others.weight_decay, all_others.lr);
  for (const ParameterGroup& each : options) {
    // Index 0 is the default group, so the first group without a name is "group 1".
    std::string name = each.name.empty() ? fmt::format("group {}", groups.size()) : each.name;
    if (std::ranges::find(groups, name, &OptimizerParamGroup::name) != groups.end()) {
      throw InvalidArgument(
          {.what = fmt::format("{} has two groups with the name '{}'", optimizer, name),
           .where = "ParameterGroup",
           .hint = "choose another name: checkpoints identify groups by name"});
    }
    groups.emplace_back(std::move(name), each.lr_scale, each.weight_decay, all_others.lr);
  }
  return groups;
}

}  // namespace

ParameterMatch under(std::string module) {
  return [module = std::move(module)](const ShardedParameter& parameter) {
    if (module.empty() || parameter.fqn == module) return true;
    return parameter.fqn.starts_with(module) && parameter.fqn[module.size()] == '.';
  };
}

bool is_bias_or_norm(const ShardedParameter& parameter) { return parameter.shape.size() <= 1; }

OptimizerParamGroup::OptimizerParamGroup(std::string name, double lr_scale, double weight_decay,
                                         const double* optimizer_lr)
    : name_(std::move(name)),
      lr_scale_(lr_scale),
      weight_decay_(weight_decay),
      optimizer_lr_(optimizer_lr) {
  require_setting(lr_scale >= 0, name_, "lr_scale", lr_scale);
  require_setting(weight_decay >= 0, name_, "weight_decay", weight_decay);
}

void OptimizerParamGroup::set_lr(double lr) {
  require_setting(lr >= 0, name_, "lr", lr);
  own_lr_ = lr;
}

void OptimizerParamGroup::set_weight_decay(double weight_decay) {
  require_setting(weight_decay >= 0, name_, "weight_decay", weight_decay);
  set_decay_ = weight_decay;
}

ChosenParameters choose_parameters(const ShardedModel& model, const ParameterMatch& match,
                                   std::string_view optimizer) {
  if (!match) return {};
  std::vector<std::vector<char>> by_unit(model.units.size());
  bool any = false;
  for_each_parameter(model, [&](const EngineUnit& unit, int parameter) {
    const bool chosen = match(described(*unit.shard, static_cast<size_t>(parameter)));
    by_unit[unit.index].push_back(chosen ? 1 : 0);
    any = any || chosen;
  });
  if (any) return ChosenParameters(std::move(by_unit));
  throw InvalidArgument(
      {.what = fmt::format("{} has no parameter to train", optimizer),
       .where = fmt::format("fsdp::{}", optimizer),
       .cause = "its `parameters` selects no parameter of the engine",
       .hint = "compare `parameters` with the names of Engine::sharded_parameters(); if "
               "you use fsdp::under, pass the name of a module of the model"});
}

std::vector<std::string> names_of(const ShardedModel& model, const ChosenParameters& chosen,
                                  bool trainable) {
  std::vector<std::string> names;
  for_each_parameter(model, [&](const EngineUnit& unit, int parameter) {
    if (!chosen.has(unit.index, parameter)) return;
    if (trainable && !unit.shard->tensors()[parameter].requires_grad()) return;
    names.push_back(unit.shard->layout().parameters()[parameter].fqn);
  });
  return names;
}

std::string describe_optimizer(std::string_view name, const ChosenParameters& chosen,
                               const std::vector<std::string>& parameters) {
  if (chosen.are_all()) return std::string(name);
  const std::string module = module_of_all(parameters);
  if (!module.empty()) return fmt::format("{} of '{}'", name, module);
  if (parameters.size() == 1) return fmt::format("{} of '{}'", name, parameters.front());
  return fmt::format("{} of {} parameters", name, parameters.size());
}

GroupedParameters group_parameters(const ShardedModel& model, const ChosenParameters& chosen,
                                   std::string_view optimizer, const DefaultGroup& all_others,
                                   const std::vector<ParameterGroup>& options) {
  GroupedParameters grouped{.groups = make_groups(all_others, options, optimizer),
                            .group_of = std::vector<std::vector<int>>(model.units.size())};
  for_each_parameter(model, [&](const EngineUnit& unit, int parameter) {
    int group = -1;
    if (chosen.has(unit.index, parameter)) {
      const ShardedParameter seen = described(*unit.shard, static_cast<size_t>(parameter));
      // The first matching group is used. Group numbers begin at 1, after the default group.
      const auto found = std::ranges::find_if(
          options, [&](const ParameterGroup& each) { return each.match && each.match(seen); });
      group = found == options.end() ? 0 : static_cast<int>(found - options.begin()) + 1;
    }
    grouped.group_of[unit.index].push_back(group);
  });
  require_members(grouped, options, optimizer);
  return grouped;
}

}  // namespace fsdp
