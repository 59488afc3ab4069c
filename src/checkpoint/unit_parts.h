// Lists the parameters of an engine, and this rank's part of each.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/state_part.h"
#include "engine/engine_parts.h"

namespace fsdp {

// A parameter of a unit. The references are valid during the call that receives it.
struct UnitParameter {
  const EngineUnit& unit;
  int parameter;  // of the unit
  const ParameterSpec& spec;
  const Interval& local;  // this rank's elements, and their place in the main shard
};

// Calls `visit` with every parameter that the engine shards, in the order of units.
void visit_unit_parameters(const EngineParts& engine,
                           const std::function<void(const UnitParameter&)>& visit);

// Returns this rank's part of an fp32 tensor that is sharded as the parameter is: its weight or a
// moment. `data` is the address of the rank's first element, in main state.
StatePart part_of(const EngineParts& engine, const UnitParameter& parameter, std::string name,
                  float* data);

}  // namespace fsdp
