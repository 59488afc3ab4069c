#include "checkpoint/optimizer_object.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "checkpoint/optimizer_file.h"
#include "checkpoint/stored_values.h"
#include "checkpoint/unit_parts.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr std::string_view kOptionValue = "option/";
constexpr std::string_view kGroupValue = "group/";

// Returns the stored numbers whose names begin with `prefix`, by name without the prefix.
std::map<std::string, double> numbers_of(const ManifestObject& stored, std::string_view prefix) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : stored.values) {
    if (name.starts_with(prefix)) numbers[name.substr(prefix.size())] = double_of(stored, name);
  }
  return numbers;
}

void require_rate(const ManifestObject& stored, std::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  refuse_object(stored, fmt::format("has a value of {} for {}", value, quoted_name(name)),
                "resume from an earlier checkpoint");
}

// Returns the part of a moment as that of its codes.
StatePart codes_of(StatePart part) {
  part.dtype = StoredDType::kU8;
  part.granule = kernels::kQuantizedBlock;
  part.must_be_finite = false;
  return part;
}

// Returns the part of a moment as that of the absmax of its blocks.
StatePart absmax_of(StatePart part) {
  part.shape = {divide_up(c10::multiply_integers(part.shape), kernels::kQuantizedBlock)};
  part.strides = {1};
  part.begin /= kernels::kQuantizedBlock;
  part.numel = divide_up(part.numel, kernels::kQuantizedBlock);
  return part;
}

}  // namespace

OptimizerObject::OptimizerObject(std::string name, Optimizer& optimizer)
    : StateObject(std::move(name), RestoreOrder::kOptimizer),
      optimizer_(optimizer),
      state_(state_of(optimizer)) {}

void OptimizerObject::append_places(std::vector<const TrainingPlace*>& places) const {
  places.push_back(&state_.place());
}

void OptimizerObject::prepare() {
  state_.engine.require_between_passes("a checkpoint");
  state_.follow_trained();
}

void OptimizerObject::require_saveable() const {
  if (state_.awaits_step()) {
    throw StateError(
        {.what = fmt::format("the updates of a backward wait for a step of {}", quoted_name(name)),
         .where = "saving a checkpoint",
         .cause = "the step's number is not counted yet",
         .hint = "save after the optimizer's step"});
  }
  if (!state_.has_new_gradients() || !state_.engine.model.has_gradients()) return;
  throw StateError({.what = fmt::format("gradients wait for a step of {}", quoted_name(name)),
                    .where = "saving a checkpoint",
                    .cause = "a checkpoint has no gradients, so they would be lost",
                    .hint = "save after the optimizer's step, or discard them with zero_grad"});
}

StateValues OptimizerObject::values() const {
  StateValues values{{"lr", state_.lr}, {"steps", state_.applied()}};
  for (const auto& [option, value] : state_.option_values()) {
    values[fmt::format("{}{}", kOptionValue, option)] = value;
  }
  for (const auto& [setting, value] : state_.group_values()) {
    values[fmt::format("{}{}", kGroupValue, setting)] = value;
  }
  std::map<std::string, int64_t> updates;
  for (const OptimizedParameter& each : state_.segments().parameters()) {
    updates[spec_of(state_, each).fqn] = each.steps;
  }
  add_counts(updates, values);
  return values;
}

void OptimizerObject::append_parts(std::vector<StatePart>& parts) {
  const std::vector<std::string_view> moments = state_.moment_names();
  for (const OptimizedParameter& each : state_.segments().parameters()) {
    const EngineUnit& unit = *state_.engine.model.units[each.unit];
    const OptimizedSegment& segment = state_.segments().all()[each.segment];
    const UnitParameter parameter{unit, each.parameter, spec_of(state_, each),
                                  unit.shard->main().local(each.parameter)};
    // A parameter without an element on this rank has no position in the moments, and its part is
    // empty. So its address does not matter.
    const bool has_elements = parameter.local.numel > 0;
    const bool is_quantized = state_.segments().is_quantized(parameter.spec);
    for (size_t moment = 0; moment < moments.size(); ++moment) {
      const auto part = [&](std::string_view what, void* data) {
        return part_of(state_.engine, parameter,
                       fmt::format("{}/{}/{}", name, what, parameter.spec.fqn),
                       static_cast<float*>(data));
      };
      if (!is_quantized) {
        parts.push_back(
            part(moments[moment],
                 has_elements ? segment.values_at(moment, parameter.local.offset) : nullptr));
        continue;
      }
      const kernels::QuantizedMoment blocks =
          has_elements ? segment.blocks_at(moment, parameter.local.offset)
                       : kernels::QuantizedMoment{};
      parts.push_back(codes_of(part(moments[moment], blocks.codes)));
      parts.push_back(absmax_of(part(absmax_name(moments[moment]), blocks.absmax)));
    }
  }
}

// A parameter that was trained and then frozen has moments, which the checkpoint also has. In this
// run it may have been frozen from the start. It is unfrozen temporarily, so that the optimizer
// makes moments for it.
void OptimizerObject::make_state_of_frozen(const CheckpointManifest& manifest) {
  const auto stored = moments_in(manifest, name);
  std::vector<at::Tensor> frozen;
  visit_unit_parameters(state_.engine, [&](const UnitParameter& each) {
    const at::Tensor& tensor = each.unit.shard->tensors()[each.parameter];
    if (tensor.requires_grad()) return;
    if (stored.contains(each.spec.fqn)) frozen.push_back(tensor);
  });
  if (frozen.empty()) return;
  for (const at::Tensor& tensor : frozen) tensor.set_requires_grad(true);
  state_.follow_trained();
  for (const at::Tensor& tensor : frozen) tensor.set_requires_grad(false);
  state_.follow_trained();
}

void OptimizerObject::append_stored_parts(const CheckpointManifest& manifest,
                                          std::vector<StatePart>& parts) {
  make_state_of_frozen(manifest);
  append_parts(parts);
}

void OptimizerObject::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                            std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  require_rate(stored, "lr", double_of(stored, "lr"));
  if (int64_of(stored, "steps") < 0) refuse_object(stored, "has a negative step", {});
  for (const auto& [setting, value] : numbers_of(stored, kGroupValue)) {
    // The group's name ends at the last dot, because the name itself may contain dots.
    const std::string group = setting.substr(0, setting.rfind('.'));
    if (std::ranges::find(std::as_const(state_).param_groups(), group,
                          &OptimizerParamGroup::name) ==
        std::as_const(state_).param_groups().end()) {
      refuse_object(
          stored,
          fmt::format("has settings of group {}, which the optimizer lacks", quoted_name(group)),
          "make the optimizer with the groups that it was saved with, by the same names");
    }
    require_rate(stored, setting, value);
  }
  const std::map<std::string, double> options = numbers_of(stored, kOptionValue);
  for (const auto& [option, value] : state_.option_values()) {
    const auto before = options.find(option);
    if (before != options.end() && before->second == value) continue;
    notes.push_back(fmt::format(
        "{}: {} is {}; the checkpoint has {}", name, option, value,
        before != options.end() ? fmt::format("{}", before->second) : std::string("none")));
  }
  // An optimizer without moments stores no tensors, so only its counts are checked.
  const auto moments = moments_in(manifest, name);
  const bool has_moments = !state_.moment_names().empty();
  for (const OptimizedParameter& each : state_.segments().parameters()) {
    const std::string& fqn = spec_of(state_, each).fqn;
    count_of(stored, fqn);
    if (!has_moments || moments.contains(fqn)) continue;
    refuse_object(
        stored,
        fmt::format("has no state of parameter {}, which the optimizer trains", quoted_name(fqn)),
        "freeze the same parameters as when the checkpoint was saved, before loading");
  }
}

void OptimizerObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(manifest);
  std::vector<OptimizedParameter> parameters = state_.segments().parameters();
  for (OptimizedParameter& each : parameters) {
    each.steps = count_of(stored, spec_of(state_, each).fqn);
  }
  state_.segments().set_counts(int64_of(stored, "steps"), parameters);
  optimizer_.set_lr(double_of(stored, "lr"));
  state_.set_group_values(numbers_of(stored, kGroupValue));
}

}  // namespace fsdp
