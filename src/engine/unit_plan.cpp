#include "engine/unit_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "fsdp/error.h"
#include "plan/placement.h"
#include "shard/parameter_seats.h"
#include "shard/shard_context.h"

namespace fsdp {
namespace {

std::string name_or_unset(const std::optional<DType>& dtype) {
  return dtype ? std::string(name_of(*dtype)) : "unset";
}

void check_param_dtype(const std::optional<DType>& dtype) {
  if (!dtype || (is_floating(*dtype) && *dtype != DType::kFloat64)) return;
  throw InvalidArgument({.what = fmt::format("param_dtype {} is not supported", name_of(*dtype)),
                         .hint = "use float32, bfloat16 or float16"});
}

// The unit's own where it says something, else the engine's. Options::recompute counts units:
// choose_recomputed.
UnitOptions options_of(const Options& options, const std::string& fqn) {
  UnitOptions own = options.unit_options ? options.unit_options(fqn) : UnitOptions{};
  const auto fall_back = [](auto& value, const auto& to) {
    if (!value) value = to;
  };
  fall_back(own.strategy, options.strategy);
  fall_back(own.param_dtype, options.param_dtype);
  fall_back(own.cast_forward_inputs, options.cast_forward_inputs);
  fall_back(own.reshard_after_forward, options.reshard_after_forward);
  fall_back(own.prefetch_units, options.prefetch_units);
  fall_back(own.unshard_in_backward, true);
  check_param_dtype(own.param_dtype);
  if (*own.prefetch_units < 0) {
    throw InvalidArgument({.what = fmt::format("prefetch_units is {}", *own.prefetch_units),
                           .where = name_of_unit(fqn),
                           .hint = "use 0 (no prefetch), 1 or 2"});
  }
  return own;
}

// Options::recompute, for the units that say nothing themselves.
void choose_recomputed(const std::vector<FoundUnit>& units, int every,
                       std::vector<UnitOptions>& options) {
  if (every < 0) {
    throw InvalidArgument({.what = fmt::format("recompute is {}", every),
                           .where = "Options::recompute",
                           .hint = "0 (no unit), 1 (all inside the root), or k: every k-th"});
  }
  int inside_root = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool counts = i > 0 && units[i].parent == 0;
    const bool chosen = counts && every > 0 && ++inside_root % every == 0;
    if (!options[i].recompute) options[i].recompute = chosen;
  }
}

// Refuses what a Unit's call does beside moving bytes, and a unit by policy cannot.
void check_policy_units(const std::vector<FoundUnit>& units, const std::vector<UnitOptions>& own,
                        const Options& options) {
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].unit != nullptr) continue;
    if (*own[i].recompute) {
      throw InvalidArgument(
          {.what = fmt::format("{} is to be recomputed, and is one by policy",
                               name_of_unit(units[i].fqn)),
           .where = "Options::recompute",
           .cause = "backward would have to call its forward, which only its caller can",
           .hint = "call it through fsdp::recompute, or make it a fsdp::Unit"});
    }
    const bool casts = *own[i].cast_forward_inputs;
    if (i > 0 && casts && !options.cast_forward_inputs) {
      throw InvalidArgument({.what = fmt::format("{} is to cast its inputs, and is one by policy",
                                                 name_of_unit(units[i].fqn)),
                             .where = "UnitOptions::cast_forward_inputs",
                             .cause = "it has none: it is the operators on its parameters",
                             .hint = "make it a fsdp::Unit, or leave the option out"});
    }
    const std::optional<DType>& around = own[units[i].parent].param_dtype;
    if (!casts || own[i].param_dtype == around) continue;
    throw InvalidArgument(
        {.what = fmt::format("{} computes in {}, in a unit that computes in {}",
                             name_of_unit(units[i].fqn), name_or_unset(own[i].param_dtype),
                             name_or_unset(around)),
         .where = "UnitOptions::param_dtype",
         .cause = "a unit by policy has no inputs to cast: it is the operators on its parameters",
         .hint = "one param_dtype for the model; or cast_forward_inputs = false, where the model "
                 "casts for itself; or make it a fsdp::Unit"});
  }
}

void check_keep_last_units(const Options& options) {
  if (options.keep_last_units < 0) {
    throw InvalidArgument({.what = fmt::format("keep_last_units is {}", options.keep_last_units),
                           .where = "Options::keep_last_units",
                           .hint = "how many units stay gathered for backward; 0: none"});
  }
  if (options.keep_last_units > 0 && !options.reshard_after_forward) {
    throw InvalidArgument({.what = fmt::format("keep_last_units is {}, and all units stay gathered",
                                               options.keep_last_units),
                           .where = "Options::reshard_after_forward = false",
                           .hint = "drop one of the two"});
  }
}

}  // namespace

std::string UnitPlan::to_string() const {
  return fmt::format(
      "param_dtype {} cast_forward_inputs {} reshard_after_forward {} prefetch {} "
      "unshard_in_backward {} strategy {} recompute {}",
      name_or_unset(options.param_dtype), *options.cast_forward_inputs, rules.reshard_after_forward,
      rules.prefetch_units, rules.unshard_in_backward, name_of(*options.strategy),
      *options.recompute);
}

std::vector<UnitPlan> plan_units(const std::vector<FoundUnit>& units, const Options& options,
                                 const ShardContext& context) {
  std::vector<UnitOptions> own;
  own.reserve(units.size());
  for (const FoundUnit& unit : units) own.push_back(options_of(options, unit.fqn));
  check_keep_last_units(options);
  choose_recomputed(units, options.recompute, own);
  check_policy_units(units, own, options);
  std::vector<UnitPlan> plans;
  for (UnitOptions& each : own) {
    const UnitRules rules{.reshard_after_forward = *each.reshard_after_forward,
                          .unshard_in_backward = *each.unshard_in_backward,
                          .is_gathered = moves_for(context, *each.strategy).gathers(),
                          .prefetch_units = *each.prefetch_units};
    plans.push_back({.options = std::move(each), .rules = rules});
  }
  return plans;
}

std::vector<std::string> describe_options(const Options& options) {
  return {fmt::format("param_dtype {}", name_or_unset(options.param_dtype)),
          fmt::format("reduce_dtype {}", name_of(options.reduce_dtype)),
          fmt::format("output_dtype {}", name_or_unset(options.output_dtype)),
          fmt::format("cast_forward_inputs {}", options.cast_forward_inputs),
          fmt::format("reshard_after_forward {}", options.reshard_after_forward),
          fmt::format("keep_last_units {}", options.keep_last_units),
          fmt::format("prefetch_units {}", options.prefetch_units),
          fmt::format("map_shards {}", options.tuning.map_shards),
          fmt::format("cpu_offload {}", options.cpu_offload),
          fmt::format("memory_limit {}", options.memory_limit),
          fmt::format("try_beyond_plan {}", options.try_beyond_plan),
          fmt::format("nccl_registration {}", static_cast<int>(options.tuning.nccl_registration)),
          fmt::format("strategy {}", name_of(options.strategy)),
          fmt::format("gradient_reduction {}", static_cast<int>(options.gradient_reduction)),
          fmt::format("gradient_divide_factor {}", options.gradient_divide_factor.value_or(0)),
          fmt::format("seed {}", options.seed)};
}

std::vector<std::string> describe_model(const std::vector<FoundUnit>& units,
                                        const std::vector<UnitPlan>& plans) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < units.size(); ++i) {
    lines.push_back(fmt::format("{} {}", name_of_unit(units[i].fqn), plans[i].to_string()));
    for (const FoundParameter& found : units[i].parameters) {
      const at::Tensor& tensor = found.tensor;
      lines.push_back(fmt::format(
          "parameter '{}' [{}] strides [{}] {}{}", found.fqn, fmt::join(tensor.sizes().vec(), ", "),
          fmt::join(tensor.strides().vec(), ", "), c10::toString(tensor.scalar_type()),
          tensor.requires_grad() ? "" : " frozen"));
    }
  }
  return lines;
}

}  // namespace fsdp
