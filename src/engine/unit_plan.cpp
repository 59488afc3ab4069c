#include "engine/unit_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "fsdp/error.h"
#include "plan/placement.h"
#include "plan/shard_layout.h"
#include "shard/parameter_bindings.h"
#include "shard/shard_context.h"

namespace fsdp {
namespace {

// Returns the engine's types, which apply to a unit that sets none. The engine's output type
// applies only to the root.
MixedPrecision precision_of_engine(const Options& options, const std::string& fqn) {
  MixedPrecision types = options.mixed_precision;
  if (!fqn.empty()) types.output_dtype.reset();
  return types;
}

// Returns the unit's own options. Unset options have the engine's values, except recompute, which
// may stay unset because it depends on the count of units (choose_recomputed).
UnitOptions options_of(const Options& options, const std::string& fqn) {
  UnitOptions own = options.unit_options ? options.unit_options(fqn) : UnitOptions{};
  const auto fall_back = [](auto& value, const auto& to) {
    if (!value) value = to;
  };
  fall_back(own.strategy, options.strategy);
  fall_back(own.mixed_precision, precision_of_engine(options, fqn));
  fall_back(own.reshard_after_forward, options.reshard_after_forward);
  fall_back(own.prefetch_units, options.prefetch_units);
  fall_back(own.unshard_in_backward, true);
  if (*own.prefetch_units < 0) {
    throw InvalidArgument(
        {.what = fmt::format("prefetch_units is {}, expected 0 or more", *own.prefetch_units),
         .where = name_of_unit(fqn),
         .hint = "use 0 (no prefetch), 1 or 2"});
  }
  return own;
}

// Sets recompute of units that do not set it. Options::recompute chooses every k-th unit directly
// inside the root.
void choose_recomputed(const std::vector<FoundUnit>& units, int every,
                       std::vector<UnitOptions>& options) {
  if (every < 0) {
    throw InvalidArgument(
        {.what = fmt::format("recompute is {}, expected 0 or more", every),
         .where = "Options::recompute",
         .hint = "use 0 (no unit), 1 (all units inside the root), or k (every k-th unit)"});
  }
  int inside_root = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    // Only units directly inside the root are counted. Units inside these are recomputed together
    // with them.
    const bool counts = i > 0 && units[i].parent == 0;
    const bool chosen = counts && every > 0 && ++inside_root % every == 0;
    if (!options[i].recompute) options[i].recompute = chosen;
  }
}

// Throws if a unit chosen by policy has an option that only the call of an fsdp::Unit supports:
// recompute, or a cast of inputs or outputs.
void check_policy_units(const std::vector<FoundUnit>& units, const std::vector<UnitPlan>& plans,
                        const Options& options) {
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].unit != nullptr) continue;
    if (*plans[i].options.recompute) {
      throw InvalidArgument(
          {.what = fmt::format("{} was chosen by Options::units and cannot be recomputed",
                               name_of_unit(units[i].fqn)),
           .where = "Options::recompute",
           .cause = "the engine cannot call its forward again",
           .hint = "call it through fsdp::recompute, or make it a fsdp::Unit"});
    }
    const Precision& own = plans[i].precision;
    const bool newly_casts = own.casts_inputs && !options.mixed_precision.cast_forward_inputs;
    if (i > 0 && (newly_casts || own.output)) {
      throw InvalidArgument(
          {.what = fmt::format("{} was chosen by Options::units and cannot cast its {}",
                               name_of_unit(units[i].fqn), own.output ? "outputs" : "inputs"),
           .where = "UnitOptions::mixed_precision",
           .cause = "the engine does not see the inputs and outputs of a unit by policy",
           .hint = "make it an fsdp::Unit, or set cast_forward_inputs = false and leave "
                   "output_dtype unset"});
    }
    // The unit's operators get their inputs in the compute type of the unit around it, so both
    // units must have the same compute type.
    const std::optional<DType>& around = plans[units[i].parent].precision.param;
    if (!own.casts_inputs || own.param == around) continue;
    throw InvalidArgument(
        {.what = fmt::format("{} computes in {}, but the unit around it computes in {}",
                             name_of_unit(units[i].fqn), name_or_unset(own.param),
                             name_or_unset(around)),
         .where = "UnitOptions::mixed_precision",
         .cause = "a unit chosen by Options::units has no inputs to cast",
         .hint = "use one param_dtype for the model, make this unit a fsdp::Unit, or set "
                 "cast_forward_inputs = false if the model casts its own inputs"});
  }
}

void check_keep_last_units(const Options& options) {
  if (options.keep_last_units < 0) {
    throw InvalidArgument(
        {.what = fmt::format("keep_last_units is {}, expected 0 or more", options.keep_last_units),
         .where = "Options::keep_last_units",
         .hint = "set it to the number of units that stay gathered for backward, 0 or more"});
  }
  if (options.keep_last_units > 0 && !options.reshard_after_forward) {
    throw InvalidArgument({.what = fmt::format("keep_last_units is {}, but all units stay gathered",
                                               options.keep_last_units),
                           .where = "Options::reshard_after_forward = false",
                           .hint = "set only one of the two"});
  }
}

}  // namespace

std::string UnitPlan::to_string() const {
  return fmt::format(
      "{} reshard_after_forward {} prefetch {} unshard_in_backward {} strategy {} recompute {}",
      fmt::join(precision.lines(), " "), rules.reshard_after_forward, rules.prefetch_units,
      rules.unshard_in_backward, name_of(*options.strategy), *options.recompute);
}

std::vector<UnitPlan> plan_units(const std::vector<FoundUnit>& units, const Options& options,
                                 const ShardContext& context) {
  std::vector<UnitOptions> own;
  own.reserve(units.size());
  for (const FoundUnit& unit : units) own.push_back(options_of(options, unit.fqn));
  check_keep_last_units(options);
  ShardLayout::require_granule(options.shard_granule);
  choose_recomputed(units, options.recompute, own);
  Precision::of(options.mixed_precision);  // checked first, to name the engine's option
  std::vector<UnitPlan> plans;
  for (size_t i = 0; i < units.size(); ++i) {
    UnitOptions& each = own[i];
    const UnitRules rules{.reshard_after_forward = *each.reshard_after_forward,
                          .unshard_in_backward = *each.unshard_in_backward,
                          .is_gathered = collectives_for(context, *each.strategy).gathers(),
                          .prefetch_units = *each.prefetch_units};
    const Precision precision = Precision::of(
        *each.mixed_precision, fmt::format("mixed_precision of {}", name_of_unit(units[i].fqn)));
    plans.push_back({.options = std::move(each), .precision = precision, .rules = rules});
  }
  check_policy_units(units, plans, options);
  return plans;
}

std::vector<std::string> describe_options(const Options& options) {
  // Options that change collectives or values must be equal on all ranks. Other options, such as
  // debug, may differ.
  std::vector<std::string> lines{
      fmt::format("reshard_after_forward {}", options.reshard_after_forward),
      fmt::format("keep_last_units {}", options.keep_last_units),
      fmt::format("prefetch_units {}", options.prefetch_units),
      fmt::format("map_shards {}", options.tuning.map_shards),
      fmt::format("cpu_offload {}", options.cpu_offload),
      fmt::format("optimizer_in_backward {}", options.optimizer_in_backward),
      fmt::format("memory_limit {}", options.memory_limit),
      fmt::format("try_beyond_plan {}", options.try_beyond_plan),
      fmt::format("nccl_registration {}", static_cast<int>(options.tuning.nccl_registration)),
      fmt::format("strategy {}", name_of(options.strategy)),
      fmt::format("shard_granule {}", options.shard_granule),
      fmt::format("gradient_reduction {}", static_cast<int>(options.gradient_reduction)),
      fmt::format("gradient_divide_factor {}", options.gradient_divide_factor.value_or(0)),
      fmt::format("seed {}", options.seed)};
  const auto types = Precision::of(options.mixed_precision).lines();
  lines.insert(lines.begin(), types.begin(), types.end());
  return lines;
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
