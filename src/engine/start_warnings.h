// Warnings that an engine reports when it starts (MeshOptions::on_event).
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <vector>

#include "engine/module_walk.h"
#include "engine/unit_plan.h"

namespace fsdp {

struct ShardContext;
struct ShardedModel;

// Reports warnings at the engine's construction, on rank 0. `plans` has one plan per unit.
void warn_at_start(const std::vector<FoundUnit>& units, const std::vector<UnitPlan>& plans,
                   const UnitPolicy& policy, const Mesh& mesh);
// Warns at the first backward if float16 is trained without a LossScaler.
void warn_of_unscaled(const ShardedModel& model, const ShardContext& context);

}  // namespace fsdp
