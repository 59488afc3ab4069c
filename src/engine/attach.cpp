// From a module tree to an engine: find the units, agree with the other ranks, cut the parameters.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/cpu_features.h"
#include "comm/mesh_state.h"
#include "engine/autograd_hooks.h"
#include "engine/buffers.h"
#include "engine/build_scope.h"
#include "engine/device_moves.h"
#include "engine/engine_state.h"
#include "engine/memory_refusal.h"
#include "engine/start_lines.h"
#include "engine/storage_holders.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "kernels/grad_norm.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

void check_param_dtype(const std::optional<DType>& dtype) {
  if (!dtype || (is_floating(*dtype) && *dtype != DType::kFloat64)) return;
  throw InvalidArgument({.what = fmt::format("param_dtype {} is not supported", name_of(*dtype)),
                         .where = {},
                         .cause = {},
                         .hint = "use float32, bfloat16 or float16"});
}

// The unit's own where it says something, else the engine's.
UnitOptions options_of(const Options& options, const std::string& fqn) {
  UnitOptions own = options.unit_options ? options.unit_options(fqn) : UnitOptions{};
  if (!own.strategy) own.strategy = options.strategy;
  if (!own.param_dtype) own.param_dtype = options.param_dtype;
  if (!own.prefetch_units) own.prefetch_units = options.prefetch_units;
  check_param_dtype(own.param_dtype);
  if (*own.prefetch_units < 0) {
    throw InvalidArgument({.what = fmt::format("prefetch_units is {}", *own.prefetch_units),
                           .where = name_of_unit(fqn),
                           .cause = {},
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

// What a Unit's call does beside moving bytes, and nobody can do for a unit by policy.
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
    const std::optional<DType>& around = own[units[i].parent].param_dtype;
    if (!options.cast_forward_inputs || own[i].param_dtype == around) continue;
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

// A parameter that an engine has, or had, as a unit's by policy.
at::Tensor first_watched(const FoundUnit& unit) {
  const auto found = std::ranges::find_if(unit.parameters, [](const FoundParameter& each) {
    return each.tensor.key_set().has_all(touch_trap::key());
  });
  return found == unit.parameters.end() ? at::Tensor() : found->tensor;
}

void warn_of_one_unit(const std::vector<FoundUnit>& units, const UnitPolicy& policy,
                      const Mesh& mesh) {
  const auto filled =
      std::ranges::count_if(units, [](const FoundUnit& unit) { return !unit.parameters.empty(); });
  if (!policy.is_set() || filled > 1 || mesh.rank() != 0) return;
  mesh.warn({.what = fmt::format("{} chooses no module with parameters: the model is one unit",
                                 policy.described()),
             .where = "Options::units",
             .cause = "all parameters are gathered at once",
             .hint = "choose the layers that repeat (fsdp::by_type, fsdp::each_child_of)"});
}

// [Note: tiles that are hidden] in cpu_features.h.
void warn_of_hidden_amx(const std::vector<UnitOptions>& options, const Mesh& mesh) {
  const bool is_low = std::any_of(options.begin(), options.end(), [](const UnitOptions& unit) {
    return unit.param_dtype && size_of(*unit.param_dtype) < size_of(DType::kFloat32);
  });
  if (!is_low || mesh.rank() != 0 || !needs_amx_left_alone()) return;
  mesh.warn({.what = "this processor announces AMX but hides its tiles",
             .where = "param_dtype",
             .cause = "LibTorch's matrix products in bfloat16 and float16 will die of an illegal "
                      "instruction",
             .hint = "start the program with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in its "
                     "environment, or through fsdp::run_program, which sets it"});
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
  std::vector<UnitRules> rules;
  std::vector<UnitOptions> own_options;
  for (const FoundUnit& unit : found) {
    const UnitOptions& own = own_options.emplace_back(options_of(options, unit.fqn));
    rules.push_back(
        {.reshard_after_forward = own.reshard_after_forward.value_or(options.reshard_after_forward),
         .unshard_in_backward = own.unshard_in_backward.value_or(true),
         .is_gathered = context->moves_for(*own.strategy).gathers(),
         .prefetch_units = *own.prefetch_units});
  }
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
  choose_recomputed(found, options.recompute, own_options);
  if (std::ranges::any_of(found, [](const FoundUnit& unit) { return unit.unit == nullptr; })) {
    check_policy_units(found, own_options, options);
    touched_units::arm();
  }
  context->mesh.agree("configuration", describe_options(options));
  std::vector<std::string> model = describe_model(found, rules, own_options);
  if (!context->one_rank()) describe_buffers(*root, model);
  context->mesh.agree("model", model);
  context->gather_into_windows(options);
  warn_of_hidden_amx(own_options, context->mesh);
  warn_of_one_unit(found, options.units, context->mesh);
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
      options.cast_forward_inputs ? own.param_dtype : std::nullopt;
  auto touched = found.unit == nullptr ? std::make_unique<TouchedUnit>() : nullptr;
  auto shard = std::make_unique<ShardUnit>(found.fqn, *context, std::move(moves), std::move(layout),
                                           std::move(tensors), std::move(main), touched.get());
  units.push_back(std::make_shared<EngineUnit>(*this, index, input_dtype, std::move(touched),
                                               std::move(shard)));
  module_names.push_back(found.module->name());
  parents.push_back(found.parent);
  units.back()->capture_gradients();
  if (found.unit == nullptr) return;
  found.unit->attached_ = true;
  found.unit->engine_unit_ = units.back();
}

}  // namespace fsdp
