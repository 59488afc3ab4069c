#include "engine/engine_units.h"

#include "engine/engine_state.h"

namespace fsdp {

ParameterState EngineUnits::parameters(int unit) const {
  return engine_.units[unit]->shard->parameters().state();
}

GradientState EngineUnits::gradients(int unit) const {
  return engine_.units[unit]->shard->gradients().state();
}

bool EngineUnits::unshard(int unit, Urgency urgency) {
  // A demand is observed before its gather, a prefetch once it is one.
  if (urgency == Urgency::kDemand) engine_.event("unshard", *engine_.units[unit]);
  const bool unshards = engine_.units[unit]->shard->parameters().unshard(urgency);
  if (urgency == Urgency::kPrefetch && unshards) engine_.event("unshard", *engine_.units[unit]);
  return unshards;
}

void EngineUnits::wait_for_unshard(int unit) {
  engine_.units[unit]->shard->parameters().wait_for_unshard();
}

void EngineUnits::reshard(int unit) {
  engine_.event("reshard", *engine_.units[unit]);
  engine_.units[unit]->shard->parameters().reshard();
}

void EngineUnits::open_gradients(int unit, bool will_reduce) {
  engine_.units[unit]->shard->gradients().open(will_reduce);
}

void EngineUnits::keep_gradients(int unit) {
  engine_.keeps_gradients = true;
  engine_.units[unit]->shard->gradients().keep();
}

void EngineUnits::reduce(int unit) {
  engine_.event("reduce", *engine_.units[unit]);
  engine_.units[unit]->shard->gradients().reduce();
}

void EngineUnits::abandon_gradients(int unit) { engine_.units[unit]->shard->gradients().abandon(); }

}  // namespace fsdp
