// Runs thread ranks on a simulated link.
#pragma once

#include <vector>

#include "comm/mesh_parts.h"
#include "support/run_ranks.h"
#include "support/wire/wire_time.h"

namespace fsdp::testing {

// Gives each group of several ranks its own link, for gathers and for reductions. Requires: `ranks`
// are those of a mesh of threads, by rank, and no collective was issued yet. Errors:
// InvalidArgument for an impossible link.
void put_on_wire(std::vector<MeshParts>& ranks, const Wire& wire);

// Returns RunRanksOptions::make: meshes as Mesh::local makes them, on `wire`.
std::function<std::vector<WatchedRank>(int world, const MeshOptions& options)> ranks_on_wire(
    const Wire& wire);

}  // namespace fsdp::testing
