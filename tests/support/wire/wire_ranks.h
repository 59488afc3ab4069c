// Thread ranks on a wire.
#pragma once

#include <vector>

#include "comm/mesh_parts.h"
#include "support/run_ranks.h"
#include "support/wire/wire_time.h"

namespace fsdp::testing {

// Gives each group of several ranks a wire of its own, in gathers and in reductions. `ranks` are
// those of a mesh of threads, by rank, before anything has travelled on it.
// Errors: InvalidArgument for a wire that cannot be.
void put_on_wire(std::vector<MeshParts>& ranks, const Wire& wire);

// RunRanksOptions::make: as Mesh::local, on `wire`.
std::function<std::vector<WatchedRank>(int world, const MeshOptions& options)> ranks_on_wire(
    const Wire& wire);

}  // namespace fsdp::testing
