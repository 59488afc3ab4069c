#include "planner/step_key.h"

namespace fsdp {
namespace {

// Resets options that do not affect LibTorch: where parameters and main state reside, and when the
// engine moves them.
UnitOptions seen_by_torch(UnitOptions of) {
  const UnitOptions any;
  of.strategy = any.strategy;
  of.reshard_after_forward = any.reshard_after_forward;
  of.prefetch_units = any.prefetch_units;
  of.unshard_in_backward = any.unshard_in_backward;
  return of;
}

Options seen_by_torch(Options of) {
  const Options any;
  // Functions (units, unit_options, ignore) cannot be compared, so they are reset. Their results
  // are part of the units' keys.
  of.units = any.units;
  of.unit_options = any.unit_options;
  of.ignore = any.ignore;
  of.recompute = any.recompute;
  of.strategy = any.strategy;
  of.shard_granule = any.shard_granule;
  of.reshard_after_forward = any.reshard_after_forward;
  of.keep_last_units = any.keep_last_units;
  of.prefetch_units = any.prefetch_units;
  of.tuning.map_shards = any.tuning.map_shards;
  of.cpu_offload = any.cpu_offload;
  of.optimizer_in_backward = any.optimizer_in_backward;
  return of;
}

UnitKey key_of(const ShardUnit& unit, const UnitOptions& options) {
  UnitKey key{.fqn = unit.fqn(),
              .options = seen_by_torch(options),
              .parameters = unit.layout().parameters(),
              .scatters_gradients = unit.collectives().scatters_gradients(),
              .captures_in_place = unit.gradients().captures_in_place()};
  for (size_t i = 0; i < key.parameters.size(); ++i) {
    key.lends.push_back(unit.gradients().lends(static_cast<int>(i)));
  }
  return key;
}

}  // namespace

StepKey::StepKey(const PlanRequest& request, const EngineParts& engine)
    : options(seen_by_torch(request.options)), guess(engine.pass.schedule().hint()) {
  // The binding lists all fields of PlanRequest. If a field is added, this does not compile until
  // the field is considered here. Fields that are not used below affect only the units, which are
  // part of the key.
  const auto& [ranks, ranks_per_host, mesh, shares, maps_shards, given, optimizer, optimizers, ema,
               checkpoints, rates, trace_file] = request;
  device = mesh.device;
  shares_gpu = shares;
  for (const auto& unit : engine.model.units) {
    units.push_back(key_of(*unit->shard, unit->place.options));
  }
}

}  // namespace fsdp
