// Runs ranks of a test as threads that connect through a store, as processes on several hosts do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "comm/mesh_parts.h"
#include "support/memory_store.h"

namespace fsdp::testing {

// Returns the environment of a rank in a job on `hosts` hosts. Each host has the same number of
// ranks.
LaunchEnvironment rank_on_hosts(int rank, int world, int hosts);

// Calls body(parts) for each environment in its own thread. `parts` are the parts of that rank's
// mesh. Returns the error text of each rank, or an empty string for a rank that did not throw.
std::vector<std::string> run_at_store(MemoryStore& store,
                                      const std::vector<LaunchEnvironment>& environments,
                                      const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body);

// Runs body(parts) as above, for `world` ranks on two hosts.
std::vector<std::string> run_at_store(MemoryStore& store, int world, const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body);

}  // namespace fsdp::testing
