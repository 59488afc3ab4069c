// Runs ranks of a test as threads that connect through a store, as processes of several hosts do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "comm/mesh_parts.h"
#include "support/memory_store.h"

namespace fsdp::testing {

// Returns the environment of a rank in a job on `hosts` hosts, with equally many ranks on each.
LaunchEnvironment rank_on_hosts(int rank, int world, int hosts);

// Calls body(parts) for each environment, in its own thread, with the parts of that rank's mesh.
// Returns each rank's error text; empty: none.
std::vector<std::string> run_at_store(MemoryStore& store,
                                      const std::vector<LaunchEnvironment>& environments,
                                      const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body);

// Does the same for `world` ranks on two hosts.
std::vector<std::string> run_at_store(MemoryStore& store, int world, const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body);

}  // namespace fsdp::testing
