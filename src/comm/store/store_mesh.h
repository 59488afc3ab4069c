// A mesh of processes on several hosts.
#pragma once

#include <memory>

#include "base/environment.h"
#include "comm/mesh_parts.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// Returns the parts of this process's rank, with a control plane over the store at MASTER_ADDR and
// MASTER_PORT. Rank 0 serves the store, unless the launcher's agent does. Communicators of engines
// and modules are missing: between hosts collectives run on GPUs alone (connect_by_nccl). `open`
// opens the store; null: this program has none.
// Effects: blocks until all ranks have arrived.
// Errors: InvalidArgument (78) without an address or `open`; those of `open` and meet_at_store.
MeshParts store_mesh(const LaunchEnvironment& environment, const MeshOptions& options,
                     OpenStore open);

// Returns the same over an open store.
MeshParts mesh_over_store(std::unique_ptr<KeyValueStore> store,
                          const LaunchEnvironment& environment, const MeshOptions& options);

}  // namespace fsdp
