// Warnings of an engine at its start (MeshOptions::on_event).
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <vector>

#include "engine/module_walk.h"
#include "engine/unit_plan.h"

namespace fsdp {

struct ShardContext;
struct ShardedModel;

// When it is made, on rank 0. `plans`: of each unit.
void warn_at_start(const std::vector<FoundUnit>& units, const std::vector<UnitPlan>& plans,
                   const UnitPolicy& policy, const Mesh& mesh);
// At the first backward: float16 without a LossScaler.
void warn_of_unscaled(const ShardedModel& model, const ShardContext& context);

}  // namespace fsdp
