#include "engine/live_units.h"

#include "engine/engine_state.h"
#include "runtime/device_error_place.h"

namespace fsdp {

ParameterState LiveUnits::parameters(int unit) const {
  return engine_.units[unit]->shard->parameters().state();
}

GradientState LiveUnits::gradients(int unit) const {
  return engine_.units[unit]->shard->gradients().state();
}

bool LiveUnits::unshard(int unit, Urgency urgency) {
  // A demand is observed before its gather, a prefetch once it is one.
  if (urgency == Urgency::kDemand) engine_.event("unshard", *engine_.units[unit]);
  const bool unshards =
      with_place([&] { return engine_.units[unit]->describe("gather"); },
                 [&] { return engine_.units[unit]->shard->parameters().unshard(urgency); });
  if (urgency == Urgency::kPrefetch && unshards) engine_.event("unshard", *engine_.units[unit]);
  return unshards;
}

void LiveUnits::wait_for_unshard(int unit) {
  engine_.units[unit]->shard->parameters().wait_for_unshard();
}

void LiveUnits::reshard(int unit) {
  engine_.event("reshard", *engine_.units[unit]);
  engine_.units[unit]->shard->parameters().reshard();
}

void LiveUnits::open_gradients(int unit, GradientSync sync) {
  engine_.memory.expect_captures(*engine_.pass);
  engine_.units[unit]->shard->gradients().open(sync);
}

void LiveUnits::keep_gradients(int unit) {
  engine_.memory.expect_kept_gradients();
  engine_.units[unit]->shard->gradients().keep();
}

void LiveUnits::reduce(int unit, bool across) {
  engine_.event("reduce", *engine_.units[unit]);
  with_place([&] { return engine_.units[unit]->describe("reduce"); },
             [&] { engine_.units[unit]->shard->gradients().reduce(across); });
}

void LiveUnits::sum_across(int unit) {
  UnitGradients& gradients = engine_.units[unit]->shard->gradients();
  if (!gradients.await_across()) return;
  engine_.event("reduce", *engine_.units[unit]);
  with_place([&] { return engine_.units[unit]->describe("reduce"); },
             [&] { gradients.sum_across(); });
}

void LiveUnits::abandon_gradients(int unit) { engine_.units[unit]->shard->gradients().abandon(); }

}  // namespace fsdp
