#include "engine/attach.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/mesh_state.h"
#include "engine/buffers.h"
#include "engine/device_moves.h"
#include "engine/engine_parts.h"
#include "engine/memory_refusal.h"
#include "engine/start_warnings.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// Broadcasts a unit's parameters from rank 0 to all ranks. Called only for units that were not
// built in a BuildScope. The values are sent as bytes, so the result is exact for every dtype.
void broadcast_parameters(const FoundUnit& unit, ShardContext& context) {
  if (context.comms.one_rank()) return;
  std::vector<CollectivePart> parts;
  int64_t numel = 0;
  for (const FoundParameter& found : unit.parameters) {
    void* data = found.tensor.data_ptr();
    parts.push_back({data, data, static_cast<int64_t>(found.tensor.nbytes()), DType::kUInt8});
    numel += parts.back().numel;
  }
  // The broadcast uses the parameters' own memory, which LibTorch frees as soon as the unit is
  // sliced. So settle blocks the host until the broadcast has finished, even if the broadcast
  // throws.
  context.streams.settle(*context.streams.gather, [&] {
    context.streams.gather_after_compute();
    context.comms.gather().broadcast(
        parts, 0, state_of(context.mesh).order().next(Operation::kBroadcast, numel, unit.fqn),
        *context.streams.gather);
  });
}

// Throws if the unit's own strategy cuts main shards differently from the BuildScope. The scope
// cuts every unit by the engine's strategy. The scope cannot use the unit's own options, because
// units have no names before the model is complete.
void check_built_alike(const UnitCollectives& collectives, const UnitCollectives& built,
                       const std::string& fqn) {
  // Two strategies may have the same placement but a different order of pieces ([Note: pieces of
  // pieces]). In this case a rank owns different slices under the two strategies.
  const bool alike = collectives.row.optimizer == built.row.optimizer &&
                     collectives.main_rank(1) == built.main_rank(1);
  if (alike) return;
  throw InvalidArgument(
      {.what = fmt::format(
           "{} has its own strategy, but the BuildScope sharded it with the engine's strategy",
           name_of_unit(fqn)),
       .where = "UnitOptions::strategy",
       .hint = "build the model without a BuildScope, and pass mesh and options to the engine"});
}

// Moves the unit's main shards out of the BuildScope. Throws if the unit has other parameters in
// the complete model than it had in the scope. For example, a tie across units moves a parameter to
// another unit.
std::vector<Buffer> take_built(BuildState& building, const FoundUnit& unit,
                               const ShardLayout& layout) {
  const auto found = building.units.find(BuildState::key_of(unit));
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
    // Compute dtypes are not compared. They may differ, because the scope does not know the unit's
    // own dtypes (Options::unit_options). Main shards are fp32 for every compute dtype.
    std::vector<std::pair<bool, int64_t>> segments;
    for (const SegmentLayout& segment : of.segments())
      segments.emplace_back(segment.trainable, segment.numel);
    return segments;
  };
  const bool fits = known && expected == built && shape(layout) == shape(found->second.layout);
  if (!fits && unit.modules.size() > 1) {
    throw InvalidArgument(
        {.what = fmt::format("the {} layers of {} were not sharded together under the BuildScope",
                             unit.modules.size(), name_of_unit(unit.fqn)),
         .where = "BuildScope::shard",
         .hint = "pass all layers of the unit to one BuildScope::shard call; if you tie or freeze "
                 "their parameters, do it before that call"});
  }
  if (!fits) {
    throw InvalidArgument(
        {.what = fmt::format("{} changed after it was constructed under the BuildScope: its "
                             "parameters, their types or requires_grad differ",
                             name_of_unit(unit.fqn)),
         .cause = "a parameter was tied to another unit, replaced, frozen or converted",
         .hint = "change parameters only in the constructor of the unit that owns them; or build "
                 "without a BuildScope, and pass mesh and options to the engine"});
  }
  return std::move(found->second.main);
}

}  // namespace

void Attachment::run() {
  find();
  check();
  plan_units();
  agree();
  build();
}

void Attachment::find() {
  require_root();
  found_ = find_units(*engine_.model.root, engine_.model.options);
}

void Attachment::plan_units() {
  plans_ = fsdp::plan_units(found_, engine_.model.options, *engine_.context);
}

void Attachment::agree() const {
  // Options are compared before models, because different options can be the cause of different
  // models. The error then names the cause.
  const Mesh& mesh = engine_.context->mesh;
  mesh.agree("configuration", describe_options(engine_.model.options));
  std::vector<std::string> lines = describe_model(found_, plans_);
  if (!engine_.context->comms.one_rank()) describe_buffers(*engine_.model.root, lines);
  mesh.agree("model", lines);
}

void Attachment::build() {
  ShardedModel& model = engine_.model;
  ShardContext& context = *engine_.context;
  const bool any_by_policy =
      std::ranges::any_of(found_, [](const FoundUnit& unit) { return unit.unit == nullptr; });
  // Most of the following steps are collective, so all ranks must take them in the same order. The
  // trap (touch_trap.h) is armed before anything changes. If arming throws, the model is unchanged.
  if (any_by_policy) touched_units::arm();
  // If Options::tuning.nccl_registration is on, slots that are allocated from here on are
  // registered with the engine's own communicator of gathers.
  context.comms.gather_into_windows(model.options, *context.streams.gather);
  connect_modules(*model.root, context.mesh);
  warn_at_start(found_, plans_, model.options.units, context.mesh);
  for (size_t i = 0; i < found_.size(); ++i) {
    with_place([&] { return "construction of " + name_of_unit(found_[i].fqn); },
               [&] { take(static_cast<int>(i)); });
  }
  // Buffers and ignored parameters belong to no unit. They are moved after all units are sharded,
  // so the device never holds them together with a whole unit.
  move_rest(*model.root, context);
  broadcast_buffers(*model.root, context);
  std::vector<UnitRules> rules;
  std::vector<int> parents;
  std::vector<bool> recomputed;
  for (size_t i = 0; i < found_.size(); ++i) {
    rules.push_back(plans_[i].rules);
    parents.push_back(found_[i].parent);
    recomputed.push_back(*plans_[i].options.recompute);
  }
  engine_.pass.make_schedule(std::move(rules), PassRecord(parents, recomputed));
  engine_.memory.remake(engine_.pass.schedule());
  // The engine joins the backward scheduler last, so the scheduler never sees an incomplete engine.
  engine_.scheduler->join(engine_.pass);
  keep_limit();
}

std::vector<Buffer> Attachment::main_shards_of(const FoundUnit& found,
                                               const UnitCollectives& collectives,
                                               const ShardLayout& layout) const {
  ShardContext& context = *engine_.context;
  if (building_ != nullptr && building_->has(found)) {
    check_built_alike(collectives, collectives_for(context, engine_.model.options.strategy),
                      found.fqn);
    return take_built(*building_, found, layout);
  }
  move_parameters(found.parameters, context);
  // Ranks may have drawn different initial values. The values of rank 0 are used.
  broadcast_parameters(found, context);
  return slice_parameters(layout, collectives.main_rank(context.mesh.rank()), found.parameters,
                          context);
}

void Attachment::take(int index) {
  const FoundUnit& found = found_[index];
  const UnitOptions& own = plans_[index].options;
  const Precision& precision = plans_[index].precision;
  std::vector<ParameterSpec> specs;
  std::vector<at::Tensor> tensors;
  for (const FoundParameter& each : found.parameters) {
    specs.push_back(spec_of(each, precision.param));
    tensors.push_back(each.tensor);
  }
  ShardContext& context = *engine_.context;
  UnitCollectives collectives = collectives_for(context, *own.strategy);
  ShardLayout layout(std::move(specs), collectives.main_ranks(),
                     engine_.model.options.shard_granule);
  std::vector<Buffer> main = main_shards_of(found, collectives, layout);
  const bool by_policy = found.unit == nullptr;
  // The unit's storages keep the address of `touched` as their owner, so `touched` is made before
  // the storages. The pointer from `touched` to the EngineUnit is set below, when the EngineUnit is
  // constructed.
  auto touched = std::make_unique<TouchedUnit>();
  touched->is_by_policy = by_policy;
  auto shard =
      std::make_unique<ShardUnit>(UnitContext{found.fqn, context, std::move(collectives),
                                              std::move(layout), precision.reduce, touched.get()},
                                  std::move(tensors), std::move(main), by_policy);
  std::vector<std::shared_ptr<EngineUnit>>& units = engine_.model.units;
  // The plain pointer is safe. Hooks use it only through a live EngineUnit, and the engine destroys
  // its units before its pass.
  const auto take_gradient = [pass = &engine_.pass](EngineUnit& unit, int parameter,
                                                    const at::Tensor& gradient) {
    pass->take_gradient(unit, parameter, gradient);
  };
  units.push_back(std::make_shared<EngineUnit>(
      engine_, engine_.pass, take_gradient,
      EngineUnit::Place{.index = index,
                        .parent = index == 0 ? nullptr : units[found.parent].get(),
                        .modules = found.modules,
                        .options = own,
                        .precision = precision},
      std::move(touched), std::move(shard)));
  // The hooks require final storage and dtype, which parameters have from here on.
  units.back()->capture_gradients();
  // The rest stores the unit in the fsdp::Unit. A module chosen by policy is an ordinary module and
  // has no member for it.
  if (by_policy) return;
  found.unit->attached_ = true;
  found.unit->recomputes_ = *own.recompute;
  found.unit->engine_unit_ = units.back();
}

// Checks the plan against Options::memory_limit. Then sets the function with which the memory meter
// refuses an allocation beyond the limit. From here on, the error of a refused allocation names the
// unit that runs and lists the remedies.
void Attachment::keep_limit() const {
  const MemoryCap& cap = engine_.context->memory.cap();
  if (cap.limit == 0) return;
  try {
    if (!engine_.model.options.try_beyond_plan) require_within_limit(*engine_.scheduler, cap.limit);
  } catch (const InvalidArgument&) {
    engine_.scheduler->leave(engine_.pass);
    throw;
  }
  cap.meter->set_refusal(refuse_beyond_limit(engine_.scheduler));
}

}  // namespace fsdp
