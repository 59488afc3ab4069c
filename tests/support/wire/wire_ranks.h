// Runs thread ranks on a simulated link.
#pragma once

#include <vector>

#include "comm/mesh_parts.h"
#include "support/run_ranks.h"
#include "support/wire/wire_time.h"

namespace fsdp::testing {

// Puts each group of several ranks on its own links: one for gathers and one for reductions.
// Requires: `ranks` are all ranks of a mesh of threads, in rank order, and have issued no
// collective. Errors: InvalidArgument for an impossible link.
void put_on_wire(std::vector<MeshParts>& ranks, const Wire& wire);

// Returns a function for RunRanksOptions::make. It makes the meshes of Mesh::local with links that
// have the speed of `wire`.
std::function<std::vector<WatchedRank>(int world, const MeshOptions& options)> ranks_on_wire(
    const Wire& wire);

}  // namespace fsdp::testing
