// What an engine warns of when it is made (MeshOptions::on_warning).
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <vector>

#include "engine/module_walk.h"

namespace fsdp {

// On rank 0. `own`: each unit's options.
void warn_at_start(const std::vector<FoundUnit>& units, const std::vector<UnitOptions>& own,
                   const UnitPolicy& policy, const Mesh& mesh);

}  // namespace fsdp
