// A mesh of processes on several hosts.
#pragma once

#include <memory>

#include "base/environment.h"
#include "comm/mesh_parts.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// Returns the parts of this process's rank. Their control plane works over the store at MASTER_ADDR
// and MASTER_PORT. Rank 0 serves the store, unless the launcher's agent does. The communicators of
// engines and modules are missing, because between hosts collectives run only on GPUs
// (connect_by_nccl). `open` opens the store. `open` is null if this program cannot open a store.
// Blocks until all ranks have arrived.
// Errors: InvalidArgument (78) if there is no address, or if `open` is null. Also the errors of
//   `open` and meet_at_store.
MeshParts store_mesh(const LaunchEnvironment& environment, const MeshOptions& options,
                     OpenStore open);

// Returns the same parts as store_mesh, over a store that is already open.
MeshParts mesh_over_store(std::unique_ptr<KeyValueStore> store,
                          const LaunchEnvironment& environment, const MeshOptions& options);

}  // namespace fsdp
