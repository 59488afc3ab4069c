// Ranks of a test as threads that meet at a store, as processes of several hosts do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "comm/mesh_parts.h"
#include "support/memory_store.h"

namespace fsdp::testing {

// Of a job on `hosts` hosts, with as many ranks on each.
LaunchEnvironment rank_on_hosts(int rank, int world, int hosts);

// Calls body(parts) for each environment in a thread of its own, with what the mesh of that rank
// has. What each threw; empty: nothing.
std::vector<std::string> run_at_store(MemoryStore& store,
                                      const std::vector<LaunchEnvironment>& environments,
                                      const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body);

// `world` ranks on two hosts.
std::vector<std::string> run_at_store(MemoryStore& store, int world, const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body);

}  // namespace fsdp::testing
