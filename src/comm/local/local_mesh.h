// A mesh of threads of this process.
#pragma once

#include <vector>

#include "comm/mesh_parts.h"

namespace fsdp {

// Returns the parts of `world_size` ranks that share one control segment. Element r belongs to rank
// r. If `device` is null, the ranks are on the CPU. If it is not null, all ranks are on `device`.
// Errors: InvalidArgument for a world without ranks.
std::vector<MeshParts> local_mesh(int world_size, const MeshOptions& options,
                                  const Device* device = nullptr);

}  // namespace fsdp
