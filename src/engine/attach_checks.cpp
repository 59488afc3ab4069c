// Attachment's checks. All of them run before anything in the model changes.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iterator>

#include "engine/attach.h"
#include "engine/engine_parts.h"
#include "engine/storage_holders.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

// Returns the unit's first parameter whose key set has the key of the trap (touch_trap.h);
// undefined if there is none. An engine adds the key to parameters of units chosen by policy. The
// parameters keep the key after the engine's destruction.
at::Tensor first_watched(const FoundUnit& unit) {
  const auto found = std::ranges::find_if(unit.parameters, [](const FoundParameter& each) {
    return each.tensor.key_set().has_all(touch_trap::key());
  });
  return found == unit.parameters.end() ? at::Tensor() : found->tensor;
}

}  // namespace

// Throws if no units can be made from the root: under c10::InferenceMode, or if the root is not a
// unit and no policy is set.
void Attachment::require_root() const {
  const ShardedModel& model = engine_.model;
  if (c10::InferenceMode::is_enabled()) {
    throw InvalidArgument({.what = "cannot make an engine under c10::InferenceMode",
                           .cause = "inference tensors can neither be sharded nor trained",
                           .hint = "construct the engine outside of InferenceMode; for forwards "
                                   "without gradients use torch::NoGradGuard"});
  }
  if (dynamic_cast<UnitBase*>(model.root.get()) == nullptr && !model.options.units.is_set()) {
    throw InvalidArgument(
        {.what = "the root of the model is not a unit",
         .hint =
             "construct the model as fsdp::Unit<YourModel>, or choose units with Options::units"});
  }
}

void Attachment::check() const {
  require_untaken();
  // Units that were built in the BuildScope are skipped. They were checked when they were sharded,
  // and their memory is unreadable now.
  std::vector<FoundUnit> plain;
  std::ranges::copy_if(found_, std::back_inserter(plain), [&](const FoundUnit& unit) {
    return building_ == nullptr || !building_->has(unit);
  });
  check_shardable(plain, engine_.context->streams.torch_device);
  std::vector<FoundParameter> parameters;
  for (const FoundUnit& unit : found_) {
    parameters.insert(parameters.end(), unit.parameters.begin(), unit.parameters.end());
  }
  check_holders(*engine_.model.root, parameters);
}

// Throws StateError if an engine owns or owned one of the units. Throws InvalidArgument if the
// model has no parameter.
void Attachment::require_untaken() const {
  bool any_parameter = false;
  for (const FoundUnit& unit : found_) {
    any_parameter = any_parameter || !unit.parameters.empty();
    // An fsdp::Unit stores that an engine owns it. A module chosen by policy stores nothing, but if
    // an engine owns or owned it, its parameters have the key of the trap (touch_trap.h).
    const at::Tensor watched = first_watched(unit);
    const bool is_attached = unit.unit != nullptr && unit.unit->attached();
    if (!is_attached && !watched.defined()) continue;
    const bool gone =
        is_attached ? unit.unit->engine_unit_.expired() : touch_trap::owner_of(watched) == nullptr;
    throw StateError(
        {.what = gone ? "the engine of this model was destroyed, so the model's values are lost"
                      : "this unit already belongs to another engine",
         .where = name_of_unit(unit.fqn),
         .hint =
             gone ? "build a new model for a new engine; save values before the engine is "
                    "destroyed (Engine::visit_full_parameters, fsdp::Gathered)"
                  : "make one engine per model; clone the model before its first engine is made"});
  }
  if (any_parameter) return;
  throw InvalidArgument(
      {.what = "the model has no registered parameter",
       .cause = engine_.model.options.ignore ? "Options::ignore may exclude all parameters" : "",
       .hint = "register parameters with register_parameter and modules with register_module in "
               "the constructor: plain members are not registered"});
}

}  // namespace fsdp
