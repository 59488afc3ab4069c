// From a module tree to an engine: find the units, agree with the other ranks, cut the parameters.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/mesh_state.h"
#include "engine/autograd_hooks.h"
#include "engine/buffers.h"
#include "engine/build_scope.h"
#include "engine/device_moves.h"
#include "engine/engine_state.h"
#include "engine/memory_refusal.h"
#include "engine/own_options.h"
#include "engine/start_lines.h"
#include "engine/start_warnings.h"
#include "engine/storage_holders.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "kernels/grad_norm.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// A parameter that an engine has, or had, as a unit's by policy.
at::Tensor first_watched(const FoundUnit& unit) {
  const auto found = std::ranges::find_if(unit.parameters, [](const FoundParameter& each) {
    return each.tensor.key_set().has_all(touch_trap::key());
  });
  return found == unit.parameters.end() ? at::Tensor() : found->tensor;
}

// Rank 0's values of a plainly built unit, on every rank.
void broadcast_parameters(const FoundUnit& unit, ShardContext& context) {
  if (context.one_rank()) return;
  std::vector<CollectivePart> parts;
  int64_t numel = 0;
  for (const FoundParameter& found : unit.parameters) {
    void* data = found.tensor.data_ptr();
    parts.push_back({data, data, static_cast<int64_t>(found.tensor.nbytes()), DType::kUInt8});
    numel += parts.back().numel;
  }
  context.settle(*context.gather_stream, [&] {
    context.gather_after_compute();
    context.gather().broadcast(
        parts, 0, context.mesh.state().order().next(Operation::kBroadcast, numel, unit.fqn),
        *context.gather_stream);
  });
}

// A BuildScope cuts a unit before its name is known.
void check_built_alike(const Moves& moves, const Moves& built, const std::string& fqn) {
  const bool alike =
      moves.row.optimizer == built.row.optimizer && moves.main_rank(1) == built.main_rank(1);
  if (alike) return;
  throw InvalidArgument(
      {.what = fmt::format("{} has a strategy of its own, and was cut by a "
                           "BuildScope by that of the engine",
                           name_of_unit(fqn)),
       .where = "UnitOptions::strategy",
       .hint = "build the model plainly, and pass mesh and options to the engine"});
}

// Takes what a BuildScope has sharded, if it fits the unit as the whole model shows it.
std::vector<Buffer> take_built(BuildScope::State& building, const FoundUnit& unit,
                               const ShardLayout& layout) {
  const auto found = building.units.find(BuildScope::State::key_of(unit));
  const bool known = found != building.units.end();
  std::vector<const c10::TensorImpl*> expected, built;
  for (const FoundParameter& each : unit.parameters) {
    expected.push_back(each.tensor.unsafeGetTensorImpl());
  }
  if (known) {
    for (const FoundParameter& each : found->second.parameters) {
      built.push_back(each.tensor.unsafeGetTensorImpl());
    }
  }
  const auto shape = [](const ShardLayout& of) {
    // Main shards are fp32 whatever the unit computes in: its dtype may be chosen by its FQN.
    std::vector<std::pair<bool, int64_t>> segments;
    for (const SegmentLayout& segment : of.segments())
      segments.emplace_back(segment.trainable, segment.numel);
    return segments;
  };
  if (!known || expected != built || shape(layout) != shape(found->second.layout)) {
    throw InvalidArgument(
        {.what = fmt::format("{} has other parameters, types or frozen flags than when it was "
                             "constructed under the BuildScope",
                             name_of_unit(unit.fqn)),
         .where = {},
         .cause =
             "parameters tied across units, replaced, frozen, or given another dtype afterwards",
         .hint = "tie and freeze in the constructor of the unit that owns the parameter, or build "
                 "plainly and pass mesh and options to the engine"});
  }
  return std::move(found->second.main);
}

}  // namespace

EngineState::EngineState(std::shared_ptr<torch::nn::Module> root_module, Options engine_options,
                         std::unique_ptr<ShardContext> engine_context)
    : root(std::move(root_module)),
      options(std::move(engine_options)),
      context(std::move(engine_context)),
      clock(clock_of(context->mesh)) {}

std::shared_ptr<Clock> EngineState::clock_of(const Mesh& mesh) {
  return std::static_pointer_cast<Clock>(mesh.state().shared_by_engines(
      [] { return std::make_shared<Clock>(autograd_hooks::clock_queries()); }));
}

EngineState::~EngineState() { shut_down(); }

void EngineState::shut_down() noexcept {
  if (is_shut_down()) return;
  const std::lock_guard lock(clock->mutex);
  clock->leave(*this);
  const auto quietly = [](const auto& act) {
    try {
      act();
    } catch (const std::exception&) {  // whoever works with the device hears of it
    }
  };
  for (const auto& unit : units) {
    quietly([&] {
      unit->shard->gradients().drop();
      unit->shard->gradients().zero();
    });
    quietly([&] {
      if (unit->shard->parameters().state() != ParameterState::kSharded)
        unit->shard->parameters().reshard();
    });
    unit->shard->parameters().set_reason("cannot be read: the engine was destroyed",
                                         "keep fsdp::Engine alive as long as the model is used");
  }
  gradients.settle();
  context->finish();  // a gather ahead of its use may still read main shards
  units.clear();
}

void EngineState::attach(BuildScope::State* building) {
  if (c10::InferenceMode::is_enabled()) {
    throw InvalidArgument({.what = "an engine made under c10::InferenceMode",
                           .where = {},
                           .cause = "inference tensors can neither be sharded nor trained",
                           .hint =
                               "construct it outside, and run forwards under torch::NoGradGuard "
                               "where no gradient is wanted"});
  }
  if (dynamic_cast<UnitBase*>(root.get()) == nullptr && !options.units.is_set()) {
    throw InvalidArgument({.what = "the root of the model is not a unit",
                           .where = {},
                           .cause = {},
                           .hint =
                               "construct it as fsdp::Unit<YourModel>: the root unit holds what no "
                               "unit inside it holds; or say by Options::units which of its "
                               "modules are units, as it is"});
  }
  std::vector<FoundUnit> found = find_units(*root, options);
  check_takable(found);
  if (building == nullptr) {
    check_shardable(found, context->torch_device);
  } else {
    std::vector<FoundUnit> plain;
    std::ranges::copy_if(found, std::back_inserter(plain),
                         [&](const FoundUnit& unit) { return !building->has(unit); });
    check_shardable(plain, context->torch_device);
  }
  std::vector<FoundParameter> parameters;
  for (const FoundUnit& unit : found) {
    parameters.insert(parameters.end(), unit.parameters.begin(), unit.parameters.end());
  }
  check_holders(*root, parameters);
  own_options = own_options_of(found, options);
  std::vector<UnitRules> rules;
  for (const UnitOptions& own : own_options) {
    rules.push_back({.reshard_after_forward = *own.reshard_after_forward,
                     .unshard_in_backward = *own.unshard_in_backward,
                     .is_gathered = context->moves_for(*own.strategy).gathers(),
                     .prefetch_units = *own.prefetch_units});
  }
  if (std::ranges::any_of(found, [](const FoundUnit& unit) { return unit.unit == nullptr; })) {
    touched_units::arm();
  }
  context->mesh.agree("configuration", describe_options(options));
  std::vector<std::string> model = describe_model(found, rules, own_options);
  if (!context->one_rank()) describe_buffers(*root, model);
  context->mesh.agree("model", model);
  context->gather_into_windows(options);
  connect_modules(*root, context->mesh);
  warn_at_start(found, own_options, options.units, context->mesh);
  for (size_t i = 0; i < found.size(); ++i) {
    with_place([&] { return "construction of " + name_of_unit(found[i].fqn); },
               [&] { add_unit(found[i], own_options[i], building); });
  }
  move_rest(*root, *context);
  broadcast_buffers(*root, *context);
  std::vector<bool> recomputed;
  for (size_t i = 0; i < found.size(); ++i) {
    recomputed.push_back(*own_options[i].recompute);
    if (found[i].unit != nullptr) found[i].unit->recomputes_ = recomputed.back();
  }
  pass = std::make_unique<Pass>(actions, std::move(rules), PassRecord(parents, recomputed),
                                options.keep_last_units);
  memory.remake(*pass);
  clock->join(*this);
  keep_limit();
}

// From here on a demand beyond the limit is one of training.
void EngineState::keep_limit() {
  const MemoryCap& cap = context->cap();
  if (cap.limit == 0) return;
  try {
    if (!options.try_beyond_plan) require_within_limit(*clock, cap.limit);
  } catch (const InvalidArgument&) {
    clock->leave(*this);
    throw;
  }
  cap.meter->set_refusal(refuse_beyond_limit(clock));
}

// Errors: StateError if an engine has, or had, one of the units; InvalidArgument if there is
// nothing to shard.
void EngineState::check_takable(const std::vector<FoundUnit>& found) {
  bool any_parameter = false;
  for (const FoundUnit& unit : found) {
    any_parameter = any_parameter || !unit.parameters.empty();
    const at::Tensor watched = first_watched(unit);
    const bool is_attached = unit.unit != nullptr && unit.unit->attached();
    if (!is_attached && !watched.defined()) continue;
    const bool gone =
        is_attached ? unit.unit->engine_unit_.expired() : touch_trap::owner_of(watched) == nullptr;
    throw StateError(
        {.what = gone ? "the engine of this model is gone, and the model's values with it"
                      : "a unit belongs to an engine already",
         .where = name_of_unit(unit.fqn),
         .cause = {},
         .hint = gone ? "build the model anew for a new engine; values outlive an engine only if "
                        "they are saved (Engine::visit_full_parameters, fsdp::Gathered)"
                      : "one engine a model; clone the model before its first engine takes it"});
  }
  if (any_parameter) return;
  throw InvalidArgument({.what = "the model has no registered parameter",
                         .where = {},
                         .cause = options.ignore ? "or Options::ignore leaves out all of them" : "",
                         .hint = "register parameters with register_parameter and modules with "
                                 "register_module in the constructor: members alone are not seen"});
}

void EngineState::add_unit(const FoundUnit& found, const UnitOptions& own,
                           BuildScope::State* building) {
  std::vector<ParameterSpec> specs;
  std::vector<at::Tensor> tensors;
  for (const FoundParameter& each : found.parameters) {
    specs.push_back(spec_of(each, own.param_dtype));
    tensors.push_back(each.tensor);
  }
  Moves moves = context->moves_for(*own.strategy);
  ShardLayout layout(std::move(specs), moves.main_ranks());
  std::vector<Buffer> main;
  if (building != nullptr && building->has(found)) {
    check_built_alike(moves, context->moves_for(options.strategy), found.fqn);
    main = take_built(*building, found, layout);
  } else {
    move_parameters(found.parameters, *context);
    broadcast_parameters(found, *context);
    main =
        slice_parameters(layout, moves.main_rank(context->mesh.rank()), found.parameters, *context);
  }
  const int index = static_cast<int>(units.size());
  const std::optional<DType> input_dtype =
      *own.cast_forward_inputs ? own.param_dtype : std::nullopt;
  auto touched = std::make_unique<TouchedUnit>();
  const bool by_policy = found.unit == nullptr;
  auto shard =
      std::make_unique<ShardUnit>(found.fqn, *context, std::move(moves), std::move(layout),
                                  std::move(tensors), std::move(main), touched.get(), by_policy);
  touched->is_by_policy = by_policy;
  units.push_back(std::make_shared<EngineUnit>(*this, index, input_dtype, std::move(touched),
                                               std::move(shard)));
  units.back()->module = found.module;
  module_names.push_back(found.module->name());
  parents.push_back(found.parent);
  units.back()->capture_gradients();
  if (found.unit == nullptr) return;
  found.unit->attached_ = true;
  found.unit->engine_unit_ = units.back();
}

}  // namespace fsdp
